# SPDX-License-Identifier: Apache-2.0
"""A little of each part of the fault campaign, and that strace does to a hook what the campaign takes it to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests import provision
from tests.faults import failing_syscalls, killed_installs, rlimits
from tests.faults.campaign import Campaign
from tests.support import machine
from tests.support.hook import shipped

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def ready() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if absent := provision.missing(provision.FAULTS):
        pytest.skip("; ".join(absent))


@contextmanager
def some(directory: Path, part: str, most: int) -> Iterator[Campaign]:
    """A campaign that tries this many cases of each kind."""
    with closing(Campaign(directory, most=most)) as run:
        run.part = part
        yield run
    assert run.rows
    assert not run.failures, "\n".join(run.failures)


def test_some_system_calls_fail(tmp_path: Path) -> None:
    with some(tmp_path, "syscalls", 4) as run:
        failing_syscalls.run(run)


@pytest.mark.form("pyz")  # the ELF file has its modules in memory
def test_a_module_that_cannot_be_loaded_is_reported(tmp_path: Path) -> None:
    """The .pyz cannot be read any more when there is a failure to report: nothing was reported."""
    with some(tmp_path, "syscalls", 12) as run:
        calls = failing_syscalls.calls("refused", run.scene)
        found = [call for call in calls if call.name == "lseek" and f"<{shipped()}>" in call.text]
        run.all("reading the file", failing_syscalls.cases("refused", found))


def test_some_have_few_descriptors_or_little_memory(tmp_path: Path) -> None:
    with some(tmp_path, "limits", 4) as run:
        rlimits.run(run)


def test_some_installs_are_killed(tmp_path: Path) -> None:
    if reason := machine.missing():
        pytest.skip(reason)
    with some(tmp_path, "installs", 2) as run:
        killed_installs.run(run)
