# SPDX-License-Identifier: Apache-2.0
"""A little of each part of the fault campaign, and that strace does to a hook what the campaign takes it to do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests import provision
from tests.faults import strace
from tests.faults.campaign import Campaign
from tests.faults.injection import failing_syscalls, killed_installs, rlimits
from tests.faults.strace import Call
from tests.kernel.inside import REAL_ROOT
from tests.support import machine
from tests.support.hook import PYZ


@pytest.fixture(autouse=True)
def ready() -> None:
    if REAL_ROOT is not None:
        pytest.skip("needs the model, and this resctrl is real")
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
    assert not run.failures, "\n".join(map(str, run.failures))


def test_some_system_calls_fail(tmp_path: Path) -> None:
    with some(tmp_path, "syscalls", 4) as run:
        failing_syscalls.run(run)


def test_a_module_that_cannot_be_loaded_is_reported(tmp_path: Path) -> None:
    """The .pyz cannot be read any more when there is a failure to report: nothing was reported."""
    with some(tmp_path, "syscalls", 12) as run:
        calls = run.ask(partial(failing_syscalls.calls, "refused"))
        found = [call for call in calls if call.name == "lseek" and f"<{PYZ}>" in call.text]
        run.all("reading the file", failing_syscalls.cases("refused", found))


def test_some_have_few_descriptors_or_little_memory(tmp_path: Path) -> None:
    with some(tmp_path, "limits", 4) as run:
        rlimits.run(run)


def test_some_installs_are_killed(tmp_path: Path) -> None:
    if reason := machine.missing():
        pytest.skip(reason)
    with some(tmp_path, "installs", 4) as run:
        killed_installs.run(run)


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "failing"])
def test_a_process_is_killed_before_its_call_and_one_that_fails_is_not_made(
    tmp_path: Path, nth: int, is_killed: bool
) -> None:
    (tmp_path / "here").mkdir()
    name, trace = "abc"[nth - 1], tmp_path / "trace"
    call = Call("mkdir", nth, f'"{name}", 0777) = 0', is_ours=True)
    command = strace.killed(trace, call) if is_killed else strace.failing(trace, call, "ENOSPC", for_good=False)
    script = "import posix; [posix.mkdir(name) for name in 'abc']"
    command = [*command, "/usr/bin/python3", "-ISc", script]
    done = subprocess.run(command, cwd=tmp_path / "here", check=False, timeout=300, capture_output=True, text=True)
    assert "".join(sorted(os.listdir(tmp_path / "here"))) == "abc"[: nth - 1]
    if is_killed:
        assert done.returncode == -9
        return
    assert f"No space left on device: '{name}'" in done.stderr
    (line,) = strace.injected(trace)
    assert call.is_same(line.partition("(")[2])
