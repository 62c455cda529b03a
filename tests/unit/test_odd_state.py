# SPDX-License-Identifier: Apache-2.0
"""How a call is served whose state is larger than a hook keeps: its head counts,
and nothing that looks like it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from hook import __main__ as program
from hook import entry, odd_state
from tests.unit.simulated import UID, Node, node

__all__ = ["node"]  # fixture


VICTIM = "00000000-0000-4000-8000-000000000001"
STATE: dict[str, Any] = {
    "ociVersion": "1.0.2",
    "id": "c1",
    "status": "creating",
    "pid": 7,
    "bundle": "/bundle",
}
FORGED = {"id": "victim", "pid": 8, "bundle": "/evil", "status": "stopped"}
HEADS = {
    "runc": json.dumps(STATE)[:-1],
    "crun, indented": json.dumps({**STATE, "root": "/r", "status": "created"}, indent=2)[
        :-2
    ].replace("/", "\\/"),
    "after another object": json.dumps({"x": [{"y": FORGED}], **STATE})[:-1],
    "after a text that looks like it": json.dumps({"x": json.dumps(FORGED), **STATE})[:-1],
}
RESTS = [
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
]


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("rest", RESTS, ids=range(len(RESTS)))
def test_members_of_the_outermost_object_that_are_whole_are_the_head(head: str, rest: str) -> None:
    members = odd_state.read_head(head + rest)
    assert (members["id"], members["pid"], members["bundle"]) == ("c1", 7, "/bundle")
    assert "annotations" not in members


@pytest.mark.parametrize(
    "text",
    ["", " ", "7", "[1, 2", '"id"', "{", "{}", '{"id"', '{"id": "c1"', '{"id": "c1" "pid": 7}'],
)
def test_what_is_not_followed_by_another_member_is_no_head(text: str) -> None:
    assert odd_state.read_head(text).keys() <= {"ociVersion"}


# --- A call with such a state. With one of any size, in bounded memory: fuse/test_process.py.


LIMIT = 400
BIG = {"io.kubernetes.pod.uid": UID, "preStop": "<" * 1000}
NAMES = {
    "io.kubernetes.pod.namespace": "shop",
    "io.kubernetes.pod.name": "web",
    "io.kubernetes.container.name": "app",
}
OPTED = {"monitor.resctrl-mon.io": "false"}


def called(
    node: Node, state: dict[str, Any], *options: str, verb: str = "hook", config: object = None
) -> str:
    """Call the hook, which keeps little enough for tests to be quick; returns its stderr."""
    if config is not None:
        node.machine.add("/bundle/config.json", json.dumps(config).encode())
    node.machine.caller.stdin, node.machine.caller.stderr = json.dumps(state).encode(), b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry, "STDIN_LIMIT", LIMIT)
        assert program.dispatch([verb, *options]) == 0
    return node.machine.caller.stderr.decode()


def test_a_state_that_is_too_large_is_monitored_by_its_head_and_its_cgroup(node: Node) -> None:
    node.spawn(7)
    said = called(node, {**STATE, "annotations": {"io.kubernetes.cri.sandbox-uid": VICTIM, **BIG}})
    assert node.groups() == {f"oci-{UID}": {7}}
    assert said.count("\n") <= 1
    assert f"bad_state: its state is larger than {LIMIT} bytes" in said
    assert "no filter leaves it out" in said
    assert node.failures() == {}
    node.kernel.die(7)
    assert called(node, {**STATE, "status": "stopped", "annotations": BIG}) == ""
    assert node.groups() == {}


def test_a_state_that_is_too_large_and_has_no_pid_is_a_bad_state(node: Node) -> None:
    state = {name: value for name, value in STATE.items() if name != "pid"}
    assert "bad_state: the state of a container that is being created has no pid" in called(
        node, {**state, "annotations": BIG}, verb="createRuntime"
    )
    assert node.failures() == {"c1": "bad_state"}


@pytest.mark.parametrize("verb", ["hook", "createRuntime"])
def test_a_state_whose_head_comes_last_is_a_bad_state(node: Node, verb: str) -> None:
    node.spawn(7)
    said = called(node, {"annotations": BIG, **STATE}, verb=verb)
    assert node.groups() == {}
    assert "bad_state: no container state on stdin" in said
    assert f"it is larger than {LIMIT} bytes, and only the beginning is used" in said
    ((name, reason),) = node.failures().items()
    assert (name[:4], reason) == ("bad-", "bad_state")


def test_names_of_a_state_that_is_too_large_are_those_of_its_bundle(node: Node) -> None:
    node.spawn(7)
    config = {"annotations": {**NAMES, **BIG}}
    said = called(node, {**STATE, "annotations": BIG}, "--namespace=shop", config=config)
    state = node.state()
    assert (state.pod_namespace, state.pod_name, state.members["c1"].name) == ("shop", "web", "app")
    assert f"larger than {LIMIT} bytes, and only the beginning is used" in said


def test_annotations_that_a_state_begins_with_are_its_own(node: Node) -> None:
    annotations = {**NAMES, "io.kubernetes.pod.uid": UID}
    node.spawn(7)
    said = called(
        node, {**STATE, "annotations": annotations, "more": BIG}, "--namespace=shop", config={}
    )
    assert node.state().pod_name == "web"
    assert "only the beginning is used" in said
    assert "annotations" not in said


@pytest.mark.parametrize(
    "filtered", ["--namespace=another", "--annotation=a=b", "--monitor=opt-in", "--monitor=opt-out"]
)
@pytest.mark.parametrize("is_known", [True, False])
def test_only_annotations_that_were_read_leave_a_container_out(
    node: Node, filtered: str, is_known: bool
) -> None:
    """A pod's author must not evade metering by the size of what he writes."""
    node.spawn(7)
    config = {"annotations": {**NAMES, **OPTED}} if is_known else None
    called(node, {**STATE, "annotations": {**OPTED, **BIG}}, filtered, config=config)
    assert node.groups() == ({} if is_known else {f"oci-{UID}": {7}})
