# SPDX-License-Identifier: Apache-2.0
"""The line for a key that ends: what is in it, when there is one, and what it says of use that is not all known.

Beside other hooks, and with each of their system calls failing: tests.simulator.
"""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from hook.base import system
from hook.base.errors import Reason
from hook.base.node_models import Job
from hook.stages.remove import poststop
from hook.state.lives import MOST_LEFT
from tests.simulator.kernel import RESCTRL
from tests.unit.simulated import ID, OTHER, UID, Node, fails, node
from tests.unit.test_create import refused, use

__all__ = ["node"]  # fixture
FILE = "/var/log/jobs/history.jsonl"
ON: dict[str, Any] = {"history": FILE}
LINGER = {**ON, "linger": 60}


@pytest.fixture(autouse=True)
def directory(node: Node) -> None:
    node.machine.fs.create_dir("/var/log/jobs")


def read(node: Node) -> list[dict[str, Any]]:
    text = node.machine.files("/var/log/jobs").get(FILE, b"")
    assert isinstance(text, bytes)
    lines = [json.loads(line) for line in text.splitlines() if line]
    for line in lines:
        assert Job.model_validate(line).model_dump() == line
    return lines


def live(node: Node, joules: float, name: str = ID, pid: int = 7, **options: Any) -> None:  # noqa: ANN401
    """A container of no pod, from its begin at 3 J to its end at so many."""
    node.start(name, pid, None, **{**ON, **options})
    use(node, joules, f"{RESCTRL}/mon_groups/oci-{name}")
    node.stop(name, pid, **{**ON, **options})


# --- What is in it


def test_the_line_of_a_container(node: Node) -> None:
    node.start(ID, 7, None, **ON)
    node.edit(f"groups/{ID}.json", members={ID: {**node.state(ID).members[ID].model_dump(), "name": "job-17"}})
    use(node, 15.5, f"{RESCTRL}/mon_groups/oci-{ID}")
    node.kernel.now += 12.345
    node.stop(ID, 7, **ON)
    (line,) = read(node)
    assert len(line.pop("id")) == 16
    assert line == {
        "version": 1, "kind": "container", "key": ID, "namespace": None, "pod": None,
        "containers": [{"id": ID, "name": "job-17"}], "more_containers": 0,
        "begin": "1970-01-12T13:46:40Z", "end": "1970-01-12T13:46:52Z", "seconds": 12.345, "lives": 1,
        "use": {"core_energy": 12.5}, "unknown": [], "late_cpu_seconds": 0.0,
    }  # fmt: skip


def test_the_line_of_a_pod_names_those_that_left_before_its_last_container(node: Node) -> None:
    node.start(ID, 7, pod="web-0", **ON)
    node.start(OTHER, 8, **ON)
    node.stop(ID, 7, **ON)
    assert read(node) == []
    node.stop(OTHER, 8, **ON)
    (line,) = read(node)
    assert (line["kind"], line["key"], line["namespace"], line["pod"]) == ("pod", UID, "shop", "web-0")
    assert [it["id"] for it in line["containers"]] == [ID, OTHER]


def test_of_many_containers_the_rest_is_counted(node: Node) -> None:
    names = [f"c{number}" for number in range(MOST_LEFT + 3)]
    for pid, name in enumerate(names, 7):
        node.start(name, pid, **ON)
    for pid, name in enumerate(names, 7):
        node.stop(name, pid, **ON)
    (line,) = read(node)
    assert ([it["id"] for it in line["containers"]], line["more_containers"]) == (names[:MOST_LEFT], 3)


def test_all_groups_of_a_key_add_up_and_bytes_are_whole_numbers(node: Node) -> None:
    node.kernel.add_class("gold")
    node.start(ID, 7, **ON)
    node.spawn(8, f"/kubepods/pod{UID}/crio-{OTHER}.scope", "gold")
    node.start(OTHER, 8, **ON)
    for top, joules in ((RESCTRL, 4.0), (f"{RESCTRL}/gold", 5.25)):
        use(node, joules, f"{top}/mon_groups/oci-{UID}")
    node.stop(ID, 7, **ON)
    node.stop(OTHER, 8, **ON)
    (line,) = read(node)
    assert line["use"] == {"core_energy": 3.25}


# --- Incarnations and lives


def test_lives_that_linger_joins_are_one_line_which_ends_with_the_last(node: Node) -> None:
    live(node, 4.0, **LINGER)
    node.kernel.now += 10
    live(node, 5.0, **LINGER)
    node.kernel.now += 61
    assert read(node) == []
    assert node.verbs(options=LINGER) == ["end"]
    (line,) = read(node)
    assert (line["lives"], line["seconds"], line["use"]) == (2, 10.0, {"core_energy": 2.0})


def test_a_start_that_failed_is_no_life_and_no_container(node: Node) -> None:
    live(node, 4.0, **LINGER)
    node.machine.refusals["put"] = [errno.EIO]
    refused(lambda: node.start(ID, 8, None, **LINGER))
    node.start(ID, 9, None, **LINGER)
    node.machine.refusals["put"] = [errno.EIO]
    refused(lambda: node.start(OTHER, 10, None, **LINGER))
    node.stop(ID, 8, 9, **ON)
    assert [(it["lives"], len(it["containers"])) for it in read(node)] == [(2, 1)]


@pytest.mark.parametrize(("is_remade", "known"), [(True, {"core_energy": 1.0}), (False, {})])
def test_use_that_another_tool_has_destroyed_is_unknown(node: Node, is_remade: bool, known: dict[str, float]) -> None:
    node.start(ID, 7, None, **ON)
    use(node, 9.0, f"{RESCTRL}/mon_groups/oci-{ID}")
    node.remove_groups()
    if is_remade:
        assert node.verbs(options=ON) == ["remake"]
        use(node, 4.0, f"{RESCTRL}/mon_groups/oci-{ID}")
    node.stop(ID, 7, **ON)
    (line,) = read(node)
    assert (line["use"], line["unknown"]) == (known, ["core_energy"])


def test_late_cpu_time_is_that_of_this_incarnation(node: Node) -> None:
    for _ in range(2):
        node.start(ID, 7, None, **ON)
        node.edit(f"groups/{ID}.json", late_cpu=node.state(ID).late_cpu + 0.25)
        node.stop(ID, 7, **ON)
        node.kernel.now += 1
    assert [it["late_cpu_seconds"] for it in read(node)] == [0.25, 0.25]


# --- When there is none


def test_a_key_from_before_the_option_has_a_line_if_a_container_joins_it(node: Node) -> None:
    node.start(ID, 7)
    node.start(OTHER, 8, **ON)
    for name, pid in ((OTHER, 8), (ID, 7)):
        node.stop(name, pid, **ON)
    (line,) = read(node)
    assert len(line["containers"]) == 2


def test_a_key_without_a_member_leaves_none(node: Node) -> None:
    node.machine.refusals["put"] = [errno.EIO]
    refused(lambda: node.start(ID, 7, None, **ON))
    node.machine.refusals["mkdir"] = [errno.ENOSPC] * 2
    refused(lambda: node.start(OTHER, 8, None, **ON))
    assert (read(node), node.groups()) == ([], {})


def test_nor_does_one_that_comes_back_in_vain(node: Node) -> None:
    live(node, 4.0)
    for call in ("put", "mkdir"):
        node.machine.refusals[call] = [errno.EIO]
        refused(lambda: node.start(ID, 8, None, **ON))
    assert [it["use"] for it in read(node)] == [{"core_energy": 1.0}]
    live(node, 4.0, pid=9)
    assert [it["use"] for it in read(node)] == [{"core_energy": 1.0}] * 2


def test_reconcile_writes_those_of_pods_only_whose_hook_would_have(node: Node) -> None:
    """The packages' timer has the option for Podman's containers, also on a node of Kubernetes."""
    node.start(ID, 7)
    node.start(OTHER, 8, None)
    node.kernel.die(7)
    node.kernel.die(8)
    assert node.verbs(options=ON) == ["drop", "drop"]
    assert [it["key"] for it in read(node)] == [OTHER]


# --- The file


@pytest.mark.parametrize(
    ("before", "after"),
    [(b"", b"{"), (b'{"version":1}\n', b'{"version":1}\n{'), (b'{"vers', b'{"vers\n{')],
    ids=["new", "whole", "torn"],
)
def test_each_line_is_a_line_of_its_own(node: Node, before: bytes, after: bytes) -> None:
    if before:
        node.machine.add(FILE, before)
    live(node, 4.0)
    text = node.machine.files("/var/log/jobs")[FILE]
    assert isinstance(text, bytes)
    assert text.startswith(after)
    assert text.endswith(b"}\n")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.ENOENT])
def test_a_line_that_cannot_be_written_is_a_complaint(node: Node, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    node.start(ID, 7, None, **ON)
    monkeypatch.setattr(system, "append_lines", fails(number))
    node.kernel.die(7)
    context = node.context(**ON)
    poststop(context, ID)
    assert [it.reason for it in context.run.complaints] == [Reason.IO]
    assert (node.groups(), node.state(ID).completed_at is None) == ({}, False)


def test_a_line_of_which_only_a_part_fits_is_a_complaint_of_a_full_disk(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.start(ID, 7, None, **ON)
    write = node.machine.write
    monkeypatch.setattr(
        node.machine, "write", lambda file, data: write(file, data[:9] if b'"more_containers"' in data else data)
    )
    node.kernel.die(7)
    context = node.context(**ON)
    poststop(context, ID)
    (complaint,) = context.run.complaints
    assert "ENOSPC" in str(complaint)


def test_a_link_in_its_place_is_left_alone(node: Node) -> None:
    node.machine.fs.create_symlink(FILE, "/run/elsewhere")
    live(node, 4.0)
    assert node.groups() == {}
    assert "/run/elsewhere" not in node.machine.files("/run")
