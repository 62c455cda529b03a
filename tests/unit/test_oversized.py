# SPDX-License-Identifier: Apache-2.0
"""The head of a state that is larger than a hook keeps: what is in it counts, and nothing that only looks like it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hook.base import system
from hook.base.errors import Reason
from hook.base.models import State
from hook.stages import entry, report
from tests.unit.test_create import UID, MachineOnDisk, machine
from tests.unit.test_rundir import clock, directories

__all__ = ["clock", "directories", "machine"]  # fixtures

VICTIM = "00000000-0000-4000-8000-000000000001"
STATE: dict[str, Any] = {"ociVersion": "1.0.2", "id": "c1", "status": "creating", "pid": 7, "bundle": "/nowhere"}
FORGED = {"id": "victim", "pid": 8, "bundle": "/evil", "status": "stopped"}
HEADS = {
    "runc": json.dumps(STATE)[:-1],
    "crun, indented": json.dumps({**STATE, "root": "/r", "status": "created"}, indent=2)[:-2].replace("/", "\\/"),
    "after another object": json.dumps({"x": [{"y": FORGED}], **STATE})[:-1],
    "after a text that looks like it": json.dumps({"x": json.dumps(FORGED), **STATE})[:-1],
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize(
    "rest",
    [
        ', "annotations": {"a": "' + "x" * 100,
        ', "annotations": {"a": "b"',
        ', "annotations": {' + json.dumps(json.dumps(FORGED)) + ': "',
        ',\n "annotations": ' + "[" * 100_000,
        ', "annotations": {"pid": 8, "id": "victim"',
        ', "pi',
        ",",
        ', "pid"',
        ', "pid": ',
        ', "pid": 8',
        ', "pid" 8, "id": "victim"',
        ', 7: 8, "id": "victim"',
    ],
)
def test_members_of_the_outermost_object_that_are_whole_are_the_head(head: str, rest: str) -> None:
    found = report.read_head(head + rest)
    assert (found["id"], found["pid"], found["bundle"]) == ("c1", 7, "/nowhere")
    assert "annotations" not in found


def test_annotations_that_are_whole_are_in_the_head() -> None:
    state = {**STATE, "annotations": {"a": "b"}}
    assert report.read_head(json.dumps(state)[:-1] + ', "more": "xxx') == state


@pytest.mark.parametrize(
    "text", ["", " ", "7", "[1, 2", '"id"', "{", "{}", '{"id"', '{"id": "c1"', '{"id": "c1" "pid": 7}']
)
def test_what_is_not_followed_by_another_member_is_no_head(text: str) -> None:
    assert report.read_head(text).keys() <= {"ociVersion"}


# --- A call with such a state


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """What is kept, so small that the tests are quick; stdin holds more."""
    monkeypatch.setattr(entry, "STDIN_LIMIT", 400)
    monkeypatch.setattr(system, "set_umask", lambda: None)
    return 400


def called(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], *options: str, verb: str = "hook"
) -> int:
    text = json.dumps(state).encode()
    monkeypatch.setattr(system, "read_stdin", lambda limit, _: (text[:limit], len(text) <= limit))
    return entry.dispatch([verb, f"--run-dir={machine.run}", f"--resctrl-root={machine.resctrl}", *options])


BIG = {"io.kubernetes.pod.uid": UID, "preStop": "<" * 1000}
NAMES = {"io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.name": "web", "io.kubernetes.container.name": "app"}
OPTED = {"monitor.resctrl-mon.io": "false"}


def test_a_state_that_is_too_large_is_monitored_by_its_head_and_its_cgroup(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch, limit: int, capfd: pytest.CaptureFixture[str]
) -> None:
    machine.spawn(7)
    assert called(machine, monkeypatch, {**STATE, "annotations": {"io.kubernetes.cri.sandbox-uid": VICTIM, **BIG}}) == 0
    assert machine.groups() == {f"oci-{UID}": {7}}
    (line,) = capfd.readouterr().err.splitlines()
    assert f"bad_state: its state is larger than {limit} bytes" in line
    assert "no filter leaves it out" in line
    assert not list((machine.run / "unmonitored").iterdir())
    machine.die(7)
    assert called(machine, monkeypatch, {**STATE, "status": "stopped", "annotations": BIG}, verb="hook") == 0
    machine.assert_clean()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("verb", ["hook", "createRuntime"])
def test_a_state_whose_head_comes_last_is_a_bad_state(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch, limit: int, verb: str, capfd: pytest.CaptureFixture[str]
) -> None:
    machine.spawn(7)
    called(machine, monkeypatch, {"annotations": BIG, **STATE}, verb=verb)
    assert machine.groups() == {}
    assert f"bad_state: stdin is larger than {limit} bytes, and that beginning lacks" in capfd.readouterr().err
    (record,) = (machine.run / "unmonitored").iterdir()
    assert record.name.startswith("bad-")
    assert json.loads(record.read_text())["pid"] is None


def test_names_of_a_state_that_is_too_large_are_those_of_its_bundle(
    machine: MachineOnDisk,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    machine.spawn(7)
    (tmp_path / "config.json").write_text(json.dumps({"annotations": {**NAMES, **BIG}}))
    called(machine, monkeypatch, {**STATE, "bundle": str(tmp_path), "annotations": BIG}, "--namespace=shop")
    state = machine.node().run.read_key(UID)
    assert state is not None
    assert (state.pod_namespace, state.pod_name, state.members["c1"].name) == ("shop", "web", "app")
    assert f"larger than {limit} bytes, and only the beginning is used: annotations are" in capfd.readouterr().err


@pytest.mark.parametrize(
    "filtered", ["--namespace=another", "--annotation=a=b", "--monitor=opt-in", "--monitor=opt-out"]
)
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.usefixtures("limit")
def test_only_annotations_that_were_read_leave_a_container_out(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, filtered: str, is_known: bool
) -> None:
    """A pod's author must not evade metering by the size of what he writes."""
    machine.spawn(7)
    if is_known:
        (tmp_path / "config.json").write_text(json.dumps({"annotations": {**NAMES, **OPTED}}))
    state = {**STATE, "bundle": str(tmp_path), "annotations": {**OPTED, **BIG}}
    called(machine, monkeypatch, state, filtered)
    assert machine.groups() == ({} if is_known else {f"oci-{UID}": {7}})


def test_a_config_beyond_its_bound_is_like_an_absent_one(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("w") as file:
        file.write('{"annotations": {"a": "b"}')
        file.truncate(17 << 20)
    state = State.model_validate({**STATE, "bundle": str(tmp_path)})
    annotations, why = report.find_annotations(state)
    assert (annotations, why.reason) == (None, Reason.BAD_STATE)
