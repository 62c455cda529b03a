# SPDX-License-Identifier: Apache-2.0
"""The record of reconcile's runs: what a run writes, adds and survives."""

from __future__ import annotations

import errno
import json

import pytest

from hook import system
from hook.cli.verbs import Ended
from hook.errors import HookError
from hook.models import Failure
from hook.node.models import ReconcileRecord
from hook.reconcile import act, run
from hook.reconcile.move import LateCpu
from hook.reconcile.run import Outcome, Repairs
from hook.store import RunDir
from tests.simulator.machine import RUN
from tests.unit.simulated import ID, Node, fails, node

__all__ = ["node"]  # fixture


def forget_one(node: Node) -> None:
    """A run that does one action."""
    record = Failure(
        container=ID, stage="createRuntime", reason="io", problem="", pid=9999, starttime=1
    )
    RunDir(RUN).write(Failure, ID, record)
    assert node.verbs() == ["forget"]


def test_a_run_leaves_its_start_its_end_and_what_it_did_and_counts_add_up(node: Node) -> None:
    assert run.plan_repairs(node.options()).is_whole
    assert RunDir(RUN).glance(ReconcileRecord, "reconcile") is None
    for number in (1, 2):
        began = system.unix_time()
        forget_one(node)
        result = node.reconciled()
        assert (result.actions, result.failures, result.failed) == ({"forget": number}, {}, 0)
        assert began <= (result.started_at or 0) <= (result.ended_at or 0) <= system.unix_time()


def test_failed_actions_are_counted(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.start()
    node.kernel.die(7)
    monkeypatch.setattr(act, "remove_members", fails(errno.EIO))
    assert not node.repair().is_whole
    result = node.reconciled()
    assert (result.actions, result.failures, result.failed) == ({}, {"drop": 1}, 1)


def test_a_run_that_is_ended_by_a_signal_or_an_error_has_a_start_and_its_counts(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_one(node)
    ended_at = node.reconciled().ended_at
    node.kernel.now += 60

    def end(_outcome: Outcome) -> None:
        raise Ended("by SIGTERM")

    node.start(pid=7, name="c1", uid=None)
    node.kernel.die(7)
    with pytest.raises(Ended):
        node.repair(repairs=Repairs(end))
    result = node.reconciled()
    assert (result.actions, result.ended_at) == ({"forget": 1, "drop": 1}, ended_at)
    assert (result.started_at or 0) > (ended_at or 0)
    monkeypatch.setattr(run, "Survey", fails(HookError("io", "the run directory cannot be read")))
    with pytest.raises(HookError):
        node.repair()
    assert node.reconciled().ended_at == ended_at


@pytest.mark.parametrize("at", ["before", "after"])
def test_the_counts_of_a_run_that_is_ended_while_it_writes_its_record_are_kept_and_not_doubled(
    node: Node, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    save = run._save

    def save_and_end(of: RunDir, outcomes: list[Outcome], **fields: float) -> None:
        if at == "after" and "ended_at" in fields:
            save(of, outcomes, **fields)
            monkeypatch.setattr(LateCpu, "save", end)
        elif "ended_at" in fields:
            end()
        else:
            save(of, outcomes, **fields)

    def end(*_arguments: object) -> None:
        monkeypatch.undo()
        raise Ended("after 45 s")

    monkeypatch.setattr(run, "_save", save_and_end)
    with pytest.raises(Ended):
        forget_one(node)
    assert node.reconciled().actions == {"forget": 1}


@pytest.mark.parametrize(
    "text", ["{", '{"version": 1, "actions": {"forget": "many"}}', '{"version": 2}']
)
@pytest.mark.parametrize(
    "name", ["reconcile.json", "reconcile.json/file", ".reconcile.tmp", ".reconcile.tmp/file"]
)
def test_a_torn_record_is_replaced(node: Node, name: str, text: str) -> None:
    node.put(name, text)
    forget_one(node)
    assert node.reconciled().actions == {"forget": 1}


def test_a_record_at_its_limits_begins_again(node: Node) -> None:
    node.put("reconcile.json", json.dumps({"version": 1, "actions": {"forget": 2**63 - 1}}))
    forget_one(node)
    assert node.reconciled().actions == {"forget": 0}


@pytest.mark.parametrize("what", ["write_new", "open_lock"])
def test_a_full_run_directory_stops_no_run(
    node: Node, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(system, what, fails(errno.ENOSPC))
    assert node.repair().is_whole
