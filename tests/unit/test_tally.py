# SPDX-License-Identifier: Apache-2.0
"""The record of reconcile's runs: what a run writes, adds and survives."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hook import system
from hook.cli.verbs import Ended
from hook.entry import Context
from hook.errors import HookError
from hook.models import KeyState, Options
from hook.node import processes
from hook.node.models import ReconcileRecord
from hook.reconcile import run as reconcile
from hook.reconcile.move import Tally
from hook.resctrl import Resctrl
from hook.store import RunDir
from tests.unit.simulated import fails


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of day, and on every other clock; the test sets it."""
    now = [1000.0]
    monkeypatch.setattr(system, "unix_time", lambda: now[0])
    monkeypatch.setattr(system, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(Resctrl(str(tmp_path)), RunDir(str(tmp_path / "run")), Options())


def record(context: Context) -> ReconcileRecord:
    found = context.run.glance(ReconcileRecord, "reconcile")
    assert found is not None
    return found


def adopt(context: Context) -> None:
    """A run that does one action."""
    with Tally(context) as tally:
        tally.count("adopt", failed=False)
        tally.end({}, {})


def put_key(context: Context, **fields: Any) -> None:  # noqa: ANN401
    context.run.write(KeyState, "c1", KeyState(key="c1", kind="container", **fields))


def late_cpu(context: Context) -> float:
    state = context.run.read_key("c1")
    assert state is not None
    return state.late_cpu


def test_a_run_leaves_its_start_its_end_and_what_it_did(context: Context, clock: list[float]) -> None:
    with Tally(context) as tally:
        assert (record(context).started_at, record(context).ended_at) == (1000, None)
        tally.count("adopt", failed=False)
        tally.count("evict", failed=True)
        clock[0] += 2
        tally.end({f"c{number}": number for number in range(1, 151)}, {}, left=3, failed=1)
    found = record(context)
    assert (found.started_at, found.ended_at, found.seconds, found.failed, found.left) == (1000, 1002, 2, 1, 3)
    assert (found.actions, found.failures) == ({"adopt": 1}, {"evict": 1})
    assert (len(found.outside), found.outside_total, min(found.outside.values())) == (100, sum(range(151)), 51)
    Tally(context).save()
    assert record(context) == found
    adopt(context)
    assert (record(context).outside, record(context).outside_total) == ({}, 0)


def test_counts_add_up_over_runs_and_a_killed_run_is_seen(context: Context, clock: list[float]) -> None:
    for _ in range(2):
        adopt(context)
    clock[0] += 60
    with Tally(context) as killed:
        killed.count("adopt", failed=False)
        found = record(context)
    assert (found.started_at, found.ended_at, found.failed) == (1060, 1000, 0)
    assert found.actions == {"adopt": 2}


def test_a_run_that_is_ended_by_a_signal_saves_its_counts(context: Context) -> None:
    with suppress(Ended), Tally(context) as tally:
        tally.count("adopt", failed=False)
        raise Ended("by SIGTERM")
    assert (record(context).actions, record(context).ended_at) == ({"adopt": 1}, None)


@pytest.mark.usefixtures("clock")
def test_two_runs_at_once_lose_no_count(context: Context) -> None:
    both = Tally(context), Tally(context)
    for tally in both:
        tally.count("adopt", failed=False)
    for tally in both:
        tally.save()
    assert record(context).actions == {"adopt": 2}


def put_link(place: Path, text: str) -> None:
    (place.parent.parent / "elsewhere").write_text(text)
    place.symlink_to(place.parent.parent / "elsewhere")


def put_directory(place: Path, text: str) -> None:
    place.mkdir()
    (place / "file").write_text(text)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("name", ["reconcile.json", ".reconcile.tmp", "reconcile.lock"])
@pytest.mark.parametrize("put", [Path.write_text, put_link, put_directory, lambda place, _text: os.mkfifo(place)])
@pytest.mark.parametrize("text", ["{", '{"version": 1, "actions": {"adopt": "many"}}', '{"version": 2}'])
def test_a_torn_or_hostile_file_is_replaced(
    context: Context, tmp_path: Path, name: str, put: Callable[[Path, str], None], text: str
) -> None:
    put(Path(context.run.path, name), text)
    adopt(context)
    assert record(context).actions == {"adopt": 1}
    assert not Path(context.run.path, "reconcile.json").is_symlink()
    elsewhere = tmp_path / "elsewhere"
    assert not elsewhere.exists() or elsewhere.read_text() == text


@pytest.mark.usefixtures("clock")
def test_a_record_at_its_limits_goes_on_anew(context: Context) -> None:
    put_key(context, late_cpu=1e12)
    full = {"version": 1, "actions": {"adopt": 2**63 - 1}, "failures": {"adopt": 2**63 - 1}, "late_cpu": 1e12}
    Path(context.run.path, "reconcile.json").write_text(json.dumps(full))
    context.late_cpu["c1"] = 1.5
    tally = Tally(context)
    tally.count("adopt", failed=False)
    tally.count("adopt", failed=True)
    tally.save()
    found = record(context)
    assert (found.actions, found.failures, found.late_cpu) == ({"adopt": 0}, {"adopt": 0}, 1.5)
    assert late_cpu(context) == 1.5


def test_a_full_run_directory_stops_no_run(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "write_new", fails(errno.ENOSPC))
    context.late_cpu["c1"] = 1.0
    adopt(context)


@pytest.mark.parametrize("what", ["write_new", "open_lock", "rename"])
@pytest.mark.usefixtures("clock")
def test_a_run_directory_that_is_full_for_a_moment_loses_no_count(
    context: Context, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    put_key(context)
    tally = Tally(context)
    tally.count("adopt", failed=False)
    tally.count("adopt", failed=True)
    context.late_cpu.update({"c1": 1.5, "gone": 1.0})
    with monkeypatch.context() as full:
        full.setattr(system, what, fails(errno.ENOSPC))
        tally.save()
    assert late_cpu(context) == 0
    tally.save()
    tally.save()
    found = record(context)
    assert (found.actions, found.failures, found.late_cpu) == ({"adopt": 1}, {"adopt": 1}, 2.5)
    assert late_cpu(context) == 1.5


def test_reconcile_records_its_run(tmp_path: Path, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(run_dir=context.run.path, resctrl_root=str(tmp_path))
    put_key(context)
    reconcile.plan_repairs(options)
    assert context.run.glance(ReconcileRecord, "reconcile") is None
    reconcile.repair(options)
    found = record(context)
    assert found.started_at is not None
    assert found.ended_at is not None
    assert found.ended_at >= found.started_at
    assert found.actions == {"end": 1}
    monkeypatch.setattr(reconcile, "Survey", fails(HookError("io", "the run directory cannot be read")))
    with pytest.raises(HookError):
        reconcile.repair(options)
    again = record(context)
    assert again.ended_at == found.ended_at
    assert again.started_at is not None
    assert again.started_at > found.ended_at


# --- What tasks had used before they were moved in


def test_late_cpu_time_is_in_the_key_and_in_the_sum_and_a_busy_key_is_added_at_the_next_save(context: Context) -> None:
    put_key(context)
    for seconds in (1.5, 0.25):
        context.late_cpu.update({"c1": seconds, "gone": 1.0})
        Tally(context).save()
        assert context.late_cpu == {}
    assert (late_cpu(context), record(context).late_cpu) == (1.75, 3.75)
    assert context.run.read_key("gone") is None
    context.late_cpu["c1"] = 1.0
    for expected in (1.75, 2.75):
        with context.run.lock("c1" if expected == 1.75 else "c2", system.monotonic()):
            Tally(context).save()
        assert late_cpu(context) == expected
    assert (context.late_cpu, record(context).late_cpu) == ({}, 4.75)


def test_the_cpu_time_of_a_thread_is_its_own() -> None:
    before = processes.cpu_seconds(os.getpid())
    while processes.cpu_seconds(os.getpid()) < before + 0.05:
        pass
    user, system_time, *_ = os.times()
    assert 0 < processes.cpu_seconds(os.getpid()) <= user + system_time + 0.02
    assert processes.cpu_seconds(2**22 + 1) == 0
