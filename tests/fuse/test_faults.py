# SPDX-License-Identifier: Apache-2.0
"""A little of each part of the fault campaign,
and that strace does to a hook what the campaign takes it to do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fetch import provision
from tests.faults import commands, processes, sums
from tests.faults.campaign import Campaign
from tests.support.hook import shipped

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def ready() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if absent := provision.missing(provision.FAULTS):
        pytest.skip("; ".join(absent))


@contextmanager
def some(part: str, most: int) -> Iterator[Campaign]:
    """A campaign that tries this many cases of each kind."""
    campaign = Campaign(most=most)
    campaign.part = part
    yield campaign
    assert campaign.rows
    assert not campaign.failures, "\n".join(campaign.failures)


@pytest.mark.both_forms
def test_some_system_calls_fail() -> None:
    with some("syscalls", 4) as campaign:
        processes.fail_calls(campaign)


@pytest.mark.form("pyz")  # the ELF file has its modules in memory
def test_a_module_that_cannot_be_loaded_is_reported() -> None:
    """The .pyz cannot be read any more when there is a failure to report: nothing was reported."""
    with some("syscalls", 6) as campaign, processes.opened_scene() as scene:
        calls = processes.list_calls(scene, "refused")
        reads = [call for call in calls if call.name == "lseek" and f"<{shipped()}>" in call.text]
        campaign.try_each("reading the file", processes.make_cases(scene, "refused", reads))


@pytest.mark.both_forms
def test_some_have_few_descriptors_or_little_memory() -> None:
    with some("limits", 4) as campaign:
        processes.limit(campaign)


@pytest.mark.both_forms
def test_command_runs_if_calls_of_run_fail_and_not_if_run_is_killed() -> None:
    with some("run", 4) as campaign:
        commands.run(campaign)


def test_no_line_is_lost_or_counted_twice_if_reconcile_is_killed_while_it_adds_up() -> None:
    with some("sums", 6) as campaign:
        sums.run(campaign)
