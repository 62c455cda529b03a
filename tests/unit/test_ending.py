# SPDX-License-Identifier: Apache-2.0
"""The line for a key that ends: what is in it, when there is one,
and what it says of use that is not all known.

Beside other hooks, and with each of their system calls failing: tests.simulator.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jsonschema
import pytest

import pyz
from hook import ending, jobs, reclaim, store, system
from hook.entry import run_stage
from hook.errors import HookError, Reason
from hook.life_end import MOST_LEFT
from hook.line import count_owed, list_owed
from hook.models import Index
from hook.node import records
from hook.node.lines import is_usual
from hook.node.models import Job
from hook.poststop import poststop
from hook.reconcile import run
from hook.resctrl import Resctrl
from hook.show.snapshot import sum_key, take_snapshot
from hook.store import LockedKey
from hook.words import explain
from tests.simulator.kernel import RESCTRL
from tests.simulator.machine import RUN
from tests.unit.simulated import GROUP, ID, OTHER, UID, Node, cgroup_of, fails, node
from tests.unit.stops import stops
from tests.unit.test_create import ENERGY, expect_refusal, move, use

__all__ = ["node"]  # fixture
FILE = "/var/log/jobs/history.jsonl"
LINE = jsonschema.Draft202012Validator(
    json.loads((pyz.ROOT / pyz.SCHEMA).read_text(encoding="ascii"))
)
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
        assert is_usual(line), "`history` is slow with others"
        LINE.validate(line)
    return lines


def live(node: Node, joules: float, name: str = ID, pid: int = 7, **options: Any) -> None:  # noqa: ANN401
    """A container of no pod, from its begin at 3 J to its end at so many."""
    node.start(name, pid, None, **{**ON, **options})
    use(node, joules, f"{RESCTRL}/mon_groups/oci-{name}")
    node.stop(name, pid, **{**ON, **options})


# --- What is in it


def test_the_line_of_a_container(node: Node) -> None:
    node.start(ID, 7, None, **ON)
    node.edit(
        f"groups/{ID}.json",
        members={ID: {**node.state(ID).members[ID].model_dump(), "name": "job-17"}},
    )
    use(node, 15.5, f"{RESCTRL}/mon_groups/oci-{ID}")
    node.kernel.now += 12.345
    node.stop(ID, 7, **ON)
    (line,) = read(node)
    assert len(line.pop("id")) == 16
    assert line == {
        "version": 1, "node": "n1", "written": "1970-01-12T13:46:52.344999Z",
        "kind": "container", "key": ID, "namespace": None, "pod": None, "labels": {},
        "containers": [{"id": ID, "name": "job-17"}], "more_containers": 0,
        "begin": "1970-01-12T13:46:40Z", "end": "1970-01-12T13:46:52Z", "seconds": 12.345,
        "runs": 1,
        "use": {"core_energy": 12.5}, "unknown": [], "late_cpu_seconds": 0.0, "reason": None,
    }  # fmt: skip


def test_the_line_of_a_pod_has_all_its_containers_and_the_sum_of_its_groups(node: Node) -> None:
    node.kernel.add_class("gold")
    node.start(ID, 7, pod="web-0", **ON)
    node.spawn(8, f"/kubepods/pod{UID}/crio-{OTHER}.scope", "gold")
    node.start(OTHER, 8, **ON)
    for top, joules in ((RESCTRL, 4.0), (f"{RESCTRL}/gold", 5.25)):
        use(node, joules, f"{top}/mon_groups/oci-{UID}")
    node.stop(ID, 7, **ON)
    assert read(node) == []
    node.stop(OTHER, 8, **ON)
    (line,) = read(node)
    assert (line["kind"], line["key"], line["namespace"], line["pod"]) == (
        "pod",
        UID,
        "shop",
        "web-0",
    )
    assert [container["id"] for container in line["containers"]] == [ID, OTHER]
    assert line["use"] == {"core_energy": 3.25}


def test_of_many_containers_the_rest_is_counted(node: Node) -> None:
    names = [f"c{number}" for number in range(MOST_LEFT + 3)]
    for pid, name in enumerate(names, 7):
        node.start(name, pid, **ON)
    for pid, name in enumerate(names, 7):
        node.stop(name, pid, **ON)
    (line,) = read(node)
    assert ([container["id"] for container in line["containers"]], line["more_containers"]) == (
        names[:MOST_LEFT],
        3,
    )


@pytest.mark.parametrize("comes_in", [None, "waits", "is refused"])
def test_use_of_a_container_beside_a_start_that_waits_or_fails_is_in_the_history(
    node: Node, comes_in: str | None
) -> None:
    """The first one had made the group, and could not be put in: another tool has moved it,
    or the kernel refuses.
    """
    node.kernel.add_class("gold")
    node.context().run.note_freed()
    make, visits = Resctrl.make, list[str]()

    def visit(*_: object) -> bool:
        node.kernel.now += 0.1
        if not visits:
            visits.append("the other container")
            node.start(OTHER, 8, **ON)
            use(node, 8.0)
            node.stop(OTHER, 8, **ON)
        return False

    def make_if_free(kernel: Resctrl, path: str) -> bool:
        if "/gold/" in path and (comes_in is None or not visits):
            raise HookError(Reason.RMIDS_IN_LIMBO, "limbo")
        return make(kernel, path)

    node.patch.setattr(Resctrl, "make", make_if_free)
    node.patch.setattr(system, "sleep", visit)
    if comes_in == "is refused":
        node.machine.refusals["put"] = [errno.EACCES]
        node.patch.setattr(reclaim, "can_help", visit)
    else:
        node.machine.before_put = move(node, 7, "gold")
    node.spawn(7)
    if comes_in == "waits":
        node.start(**ON)
        use(node, 5.0, f"{RESCTRL}/gold/mon_groups/oci-{UID}")
        node.stop(ID, 7, **ON)
    else:
        expect_refusal(lambda: node.start(**ON))
    lines = read(node)
    assert [(line["use"], line["unknown"]) for line in lines] == [
        ({"core_energy": joules}, []) for joules in ([5.0, 2.0] if comes_in == "waits" else [5.0])
    ]
    assert node.groups() == {}
    node.assert_settled()


# --- Several runs of a key


def test_lives_that_linger_joins_are_one_line_which_ends_with_the_last(node: Node) -> None:
    live(node, 4.0, **LINGER)
    node.kernel.now += 10
    live(node, 5.0, **LINGER)
    node.kernel.now += 61
    assert read(node) == []
    assert node.verbs(options=LINGER) == ["end"]
    (line,) = read(node)
    assert (line["runs"], line["seconds"], line["use"]) == (2, 10.0, {"core_energy": 2.0})


def test_a_start_that_failed_is_no_life_and_no_container(node: Node) -> None:
    live(node, 4.0, **LINGER)
    node.machine.refusals["put"] = [errno.EIO]
    expect_refusal(lambda: node.start(ID, 8, None, **LINGER))
    node.start(ID, 9, None, **LINGER)
    node.machine.refusals["put"] = [errno.EIO]
    expect_refusal(lambda: node.start(OTHER, 10, None, **LINGER))
    node.stop(ID, 8, 9, **ON)
    assert [(line["runs"], len(line["containers"])) for line in read(node)] == [(2, 1)]


@pytest.mark.parametrize("is_given_back", [True, False])
def test_use_of_a_container_that_another_tool_had_taken_is_known_in_part(
    node: Node, is_given_back: bool
) -> None:
    node.start(ID, 7, None, **ON)
    use(node, 9.0, f"{RESCTRL}/mon_groups/oci-{ID}")
    node.kernel.move(7, node.make_group("theirs"))
    assert node.verbs(options=ON) == ["note"]
    if is_given_back:
        node.kernel.rmdir(f"{RESCTRL}/mon_groups/theirs")
        assert node.verbs(options=ON) == ["adopt"]
    node.stop(ID, 7, **ON)
    (line,) = read(node)
    assert (line["use"], line["unknown"]) == ({"core_energy": 6.0}, ["core_energy"])


@pytest.mark.parametrize("cause", ["removed", "taken"])
def test_use_of_a_run_after_one_that_is_known_in_part_is_known(node: Node, cause: str) -> None:
    node.start(ID, 7, None, **ON)
    if cause == "removed":
        node.remove_groups()
    else:
        node.kernel.move(7, node.make_group("theirs"))
    node.verbs(options=ON)
    node.stop(ID, 7, **ON)
    for pid in (8, 9):
        node.kernel.now += 1
        live(node, 4.5, pid=pid)
        assert node.state(ID).groups[0].before == {ENERGY: "Unavailable earlier"}
    assert [line["unknown"] for line in read(node)] == [["core_energy"], [], []]
    assert [line["use"] for line in read(node)[1:]] == [{"core_energy": 1.5}] * 2


def test_events_that_come_with_a_new_mount_are_unknown_until_then(node: Node) -> None:
    """Of a run that goes on over the mount.

    A later run, and one that begins after the mount, are known.
    """
    node.kernel.resctrl.counters.offline("mon_PERF_PKG_00")
    node.start(ID, 7, None, **ON)
    node.start(OTHER, 9, None, **ON)
    node.stop(OTHER, 9, **ON)
    node.kernel.resctrl.counters.online("mon_PERF_PKG_00")
    node.kernel.mount()
    assert node.verbs(options=ON) == ["remake"]
    group = f"{RESCTRL}/mon_groups/oci-{ID}"
    use(node, 5.0, group)
    (of_id,) = (key for key in take_snapshot(node.options()).keys if key.state.key == ID)
    assert sum_key(of_id)["core_energy"].at_least
    node.stop(ID, 7, **ON)
    node.machine.refusals["put"] = [errno.EIO]
    expect_refusal(lambda: node.start(OTHER, 10, None, **ON))  # it has no line
    live(node, 6.0, OTHER, 10)
    assert [(line["use"], line["unknown"]) for line in read(node)[1:]] == [
        ({"core_energy": 2.0}, ["core_energy"]),
        ({"core_energy": 3.0}, []),
    ]
    node.kernel.now += 1
    node.start(OTHER, 11, None, **ON)
    (again,) = (key for key in take_snapshot(node.options()).keys if key.state.key == OTHER)
    assert sum_key(again)["core_energy"].at_least, "of the run before the mount"


def test_late_cpu_time_is_that_of_this_run(node: Node) -> None:
    for _ in range(2):
        node.start(ID, 7, None, **ON)
        node.edit(f"groups/{ID}.json", late_cpu=node.state(ID).late_cpu + 0.25)
        node.stop(ID, 7, **ON)
        node.kernel.now += 1
    assert [line["late_cpu_seconds"] for line in read(node)] == [0.25, 0.25]


# --- When there is none


def test_a_key_from_before_the_option_has_a_line_if_a_container_joins_it(node: Node) -> None:
    node.start(ID, 7)
    node.start(OTHER, 8, **ON)
    for name, pid in ((OTHER, 8), (ID, 7)):
        node.stop(name, pid, **ON)
    (line,) = read(node)
    assert len(line["containers"]) == 2


@pytest.mark.parametrize("has_lived", [False, True])
def test_a_key_that_gets_no_member_leaves_none(node: Node, has_lived: bool) -> None:
    if has_lived:
        live(node, 4.0)
    for call in ("put", "mkdir"):
        node.machine.refusals[call] = [errno.EIO]
        expect_refusal(lambda: node.start(ID, 8, None, **ON))
    assert [line["use"] for line in read(node)] == [{"core_energy": 1.0}] * has_lived
    live(node, 4.0, pid=9)
    assert [line["use"] for line in read(node)] == [{"core_energy": 1.0}] * (1 + has_lived)
    assert node.groups() == {}


# --- The file

FOREIGN = b"\0\0\xff not of ours\n" + b'{"version": 2, "id": "1"}' + b"\0" * 9


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b"{"),
        (b'{"version":1}\n', b'{"version":1}\n{'),
        (b'{"vers', b'{"vers\n{'),
        (FOREIGN, FOREIGN + b'\n{"version": 1'),
    ],
    ids=["new", "whole", "torn", "foreign and damaged"],
)
def test_each_line_is_a_line_of_its_own(node: Node, before: bytes, after: bytes) -> None:
    if before:
        node.machine.add(FILE, before)
    live(node, 4.0)
    text = node.machine.files("/var/log/jobs")[FILE]
    assert isinstance(text, bytes)
    assert text.startswith(after)
    assert text.endswith(b"}\n")


def test_a_line_of_which_only_a_part_fits_is_a_complaint_of_a_full_disk(node: Node) -> None:
    node.start(ID, 7, None, **ON)
    write = node.machine.write
    node.patch.setattr(
        node.machine,
        "write",
        lambda file, data: write(file, data[:9] if b'"more_containers"' in data else data),
    )
    node.kernel.die(7)
    context = node.context(**ON)
    poststop(context, ID)
    (complaint,) = context.run.complaints
    assert "ENOSPC" in str(explain(complaint))


def test_a_link_in_its_place_is_left_alone(node: Node) -> None:
    node.machine.fs.create_symlink(FILE, "/run/elsewhere")
    live(node, 4.0)
    assert node.groups() == {}
    assert "/run/elsewhere" not in node.machine.files("/run")
    assert owed(node) == {ID: 1}


# --- The record names it


def test_a_reclaim_by_a_hook_of_another_file_writes_the_line_where_it_belongs(node: Node) -> None:
    node.kernel.rmids = 1
    live(node, 4.0, **LINGER)
    node.start(OTHER, 8, history="/var/log/jobs/other.jsonl")
    assert [line["key"] for line in read(node)] == [ID]
    assert set(node.machine.files("/var/log/jobs")) == {FILE}


def test_a_container_that_reconcile_adopts_has_its_file_and_keeps_that_of_its_hook(
    node: Node,
) -> None:
    node.start(ID, 7, None, history="/var/log/jobs/first.jsonl")
    node.remove_groups()
    assert node.verbs(options=ON) == ["remake"]
    assert node.state(ID).history_file == "/var/log/jobs/first.jsonl"
    node.remove(f"groups/{ID}.json")
    assert node.verbs(options=ON) == ["rebuild"]
    assert node.state(ID).history_file == "/var/log/jobs/first.jsonl"
    node.start(ID, 7, None, history="/var/log/jobs/second.jsonl")
    # Decided where the run of the key began.
    assert node.state(ID).history_file == "/var/log/jobs/first.jsonl"
    node.stop(ID, 7, history="/var/log/jobs/second.jsonl")
    node.start(ID, 8, None, history="/var/log/jobs/second.jsonl")
    assert node.state(ID).history_file == "/var/log/jobs/second.jsonl"


@pytest.mark.parametrize("call", ["mkdir", "mount"])
def test_a_pod_that_its_hook_could_not_monitor_has_its_line(node: Node, call: str) -> None:
    """reconcile brings it in, without the option, also if its first tries fail."""
    if call == "mount":
        node.kernel.unmount()
    else:
        node.machine.refusals["mkdir"] = [errno.EIO] * 2
    node.spawn(7)
    said = {"io.kubernetes.pod.uid": UID}
    state = {
        "ociVersion": "1.0.2",
        "id": ID,
        "status": "created",
        "pid": 7,
        "bundle": "/b",
        "annotations": said,
    }
    node.patch.setattr(system, "read_stdin", lambda *_: (json.dumps(state).encode(), True))
    run_stage(
        "createRuntime", [f"--run-dir={RUN}", f"--resctrl-root={RESCTRL}", f"--history={FILE}"]
    )
    if call == "mount":
        node.kernel.mount()
    else:
        assert node.repair().failed
    assert node.verbs() == ["retry"]
    use(node, 4.5, f"{RESCTRL}/mon_groups/oci-{UID}")
    node.stop(ID, 7)
    assert [(line["key"], line["use"]) for line in read(node)] == [(UID, {"core_energy": 1.5})]


@pytest.mark.parametrize("text", [None, "{", "[]"], ids=["lost", "torn", "of another kind"])
def test_a_pod_whose_record_is_rebuilt_has_its_line(node: Node, text: str | None) -> None:
    node.start(ID, 7, **ON)
    node.start(OTHER, 8, **ON)
    node.remove(f"members/{OTHER}.json")
    if text is None:
        node.remove(f"groups/{UID}.json")
    else:
        node.put(f"groups/{UID}.json", text)
    assert "rebuild" in node.verbs()
    assert node.context().run.read(Index, OTHER) == Index(
        key=UID, pid=8, starttime=100, history_file=FILE
    )
    node.stop(ID, 7)
    node.stop(OTHER, 8)
    assert [(line["key"], line["unknown"]) for line in read(node)] == [(UID, ["core_energy"])]


@pytest.mark.parametrize("ttl", [0, 300])
def test_a_run_without_a_history_has_no_line_also_after_one_that_has_or_owes_one(
    node: Node, ttl: int
) -> None:
    live(node, 4.0, snapshot_ttl=ttl)
    live(node, 5.0, pid=8, snapshot_ttl=ttl, history="")
    assert [line["use"] for line in read(node)] == [{"core_energy": 1.0}]
    node.kernel.now += 1
    with broken(node):
        live(node, 6.0, pid=9, snapshot_ttl=ttl)
        live(node, 7.0, pid=10, snapshot_ttl=ttl, history="")
        assert owed(node) == {ID: 1}
    node.start(ID, 11, None, history="")
    node.stop(ID, 11)
    assert ([line["use"] for line in read(node)], owed(node)) == (
        [{"core_energy": 1.0}, {"core_energy": 3.0}],
        {},
    )


def test_the_line_of_a_job_has_the_labels_of_its_run(node: Node) -> None:
    node.spawn(7, "/user.slice")
    labels = {"user": "alice", "project": 'J\u00f6rg "x"'}
    for given in (labels, {}):
        jobs.assign(node.context(**ON), "nightly", {7: ""}, given)
        jobs.release(node.context(**ON), "nightly")
        node.kernel.now += 1
    assert [(line["kind"], line["labels"]) for line in read(node)] == [("job", labels), ("job", {})]


# --- Lines that wait


def owed(node: Node) -> dict[str, int]:
    """How many lines each key owes."""
    return {
        state.key: count_owed(state)
        for state in store.list_states(node.context().run)
        if state.owed is not None
    }


@contextmanager
def broken(node: Node, number: int = errno.EPERM) -> Iterator[None]:
    """The file cannot be written."""
    with node.patch.context() as patch:
        patch.setattr(ending, "append_lines", fails(number))
        yield


@pytest.mark.parametrize("ttl", [0, 300])
@pytest.mark.parametrize("has_file", [True, False])
def test_lines_that_wait_keep_the_file_and_the_labels_of_their_run(
    node: Node, ttl: int, has_file: bool
) -> None:
    """Also those in the record of a version that knew one file only."""
    users = {"ann": FILE, "bob": "/var/log/jobs/other.jsonl", "eve": FILE}
    with broken(node):
        for pid, (user, file) in enumerate(users.items(), 7):
            node.spawn(pid, "/user.slice")
            context = node.context(history=file, snapshot_ttl=ttl)
            jobs.assign(context, "nightly", {pid: ""}, {"user": user})
            jobs.release(context, "nightly")
            node.kernel.now += 1
            if not has_file and user == "ann":
                (waiting,) = list_owed(node.state("nightly"))
                node.edit("groups/nightly.json", owed={"lines": waiting.lines, "why": waiting.why})
        shown = take_snapshot(node.options()).list_owed()
        assert [(waiting.file, waiting.lines) for waiting in shown] == [
            (FILE, 2),
            (users["bob"], 1),
        ]
    node.repair()
    labels = dict[str, list[str]]()
    for file, text in node.machine.files("/var/log/jobs").items():
        assert isinstance(text, bytes)
        labels[file] = [json.loads(line)["labels"]["user"] for line in text.splitlines()]
    assert (labels, owed(node)) == ({FILE: ["ann", "eve"], users["bob"]: ["bob"]}, {})


def test_a_file_that_cannot_be_written_holds_no_line_of_another_back(node: Node) -> None:
    other = "/gone/history.jsonl"
    with broken(node):
        live(node, 4.0, history=other)
        node.kernel.now += 1
        live(node, 5.0, pid=8)
    assert [outcome.problem is None for outcome in node.repair().outcomes] == [False]
    assert [line["use"] for line in read(node)] == [{"core_energy": 2.0}]
    assert [
        (waiting.file, waiting.lines) for waiting in take_snapshot(node.options()).list_owed()
    ] == [(other, 1)]


@pytest.mark.parametrize("ttl", [0, 300])
def test_twelve_jobs_that_could_not_be_written_are_twelve_lines(node: Node, ttl: int) -> None:
    names = [f"c{number}" for number in range(11)]
    with broken(node):
        for pid, name in enumerate([*names, "c0"], 7):
            live(node, 4.0 + 2 * pid, name, pid, snapshot_ttl=ttl)
            node.kernel.now += 1
        node.kernel.now += 400
        done = node.repair()
        problems = [str(failed.problem) for failed in done.failed if failed.action.verb == "write"]
        assert ["EPERM" in problem for problem in problems] == [True] * 11
        assert owed(node) == {**dict.fromkeys(names, 1), "c0": 2}
        assert all(
            state.completed_at and not state.groups
            for state in store.list_states(node.context().run)
        )
    assert node.verbs() == ["write"] * 11
    lines = read(node)
    assert len({line["id"] for line in lines}) == len(lines) == 12
    assert sum(line["use"]["core_energy"] for line in lines) == sum(
        1.0 + 2 * pid for pid in range(7, 19)
    )
    assert store.list_states(node.context().run) == []
    node.assert_settled()


def test_a_line_that_cannot_be_written_is_a_complaint_and_the_next_end_writes_it(
    node: Node,
) -> None:
    node.start(ID, 7, None, **ON)
    with broken(node):
        node.kernel.die(7)
        context = node.context(**ON)
        poststop(context, ID)
        assert [complaint.reason for complaint in context.run.complaints] == [Reason.IO]
        assert (node.groups(), node.state(ID).completed_at is None) == ({}, False)
    with broken(node, errno.ENOENT):
        node.repair()
    assert node.state(ID).owed.why == "No such file or directory: ENOENT", "of the last try"  # type: ignore[union-attr]
    node.kernel.now += 1
    node.start(ID, 8, None, **ON)
    assert (owed(node), read(node)) == ({ID: 1}, [])
    node.stop(ID, 8)
    assert (owed(node), len({line["id"] for line in read(node)})) == ({}, 2)


def test_a_key_that_has_forgotten_its_snapshot_begins_again_with_what_it_owes(node: Node) -> None:
    with broken(node):
        live(node, 9.0)
        node.kernel.now += 400
        assert [outcome.action.verb for outcome in node.repair().outcomes] == ["prune", "write"]
        assert not [file for file in node.files() if file.startswith("mon_groups")]
    live(node, 5.0, pid=8)
    assert [line["use"] for line in read(node)] == [{"core_energy": 6.0}, {"core_energy": 2.0}]
    assert node.state(ID).groups[0].before == {}


def test_a_start_that_is_killed_has_no_line_unless_its_begin_was_saved(node: Node) -> None:
    """Its container never ran: a line of unknown use would be in a bill without any use."""
    for stop in stops(node.machine):
        with stop:
            node.start(ID, 7, None, **ON)
        node.kernel.die(7)
        node.repair(options=ON)
        node.kernel.now += 1
    assert {str((line["use"], line["unknown"])) for line in read(node)} == {
        "({'core_energy': 0.0}, [])"
    }


@pytest.mark.parametrize("ends", ["poststop", "release"])
def test_where_neither_line_nor_record_can_be_written_nothing_goes_and_the_next_end_has_all(
    node: Node, ends: str
) -> None:
    """The group and the index went, the record kept the member,
    and what it had used was in no line.
    """
    key = "nightly" if ends == "release" else ID
    if ends == "release":
        node.spawn(7, "/user.slice")
        jobs.assign(node.context(**ON), key, {7: ""}, {})
    else:
        node.start(ID, 7, None, **ON)
        node.kernel.die(7)
    use(node, 5, f"{RESCTRL}/mon_groups/oci-{key}")

    def end() -> None:
        if ends == "release":
            jobs.release(node.context(**ON), key)
        else:
            node.stop(ID, **ON)

    files = node.files()
    with broken(node), node.patch.context() as patch:
        patch.setattr(LockedKey, "commit", fails(errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            end()
    assert (node.files(), [*node.groups()]) == (files, [f"oci-{key}"])
    end()
    assert [(line["use"], line["unknown"]) for line in read(node)] == [({"core_energy": 2.0}, [])]


def test_a_start_after_the_linger_time_begins_another_run(node: Node) -> None:
    """It joined the former one, with one line over the gap, if no reconcile had been in between."""
    for joules, passes in ((5, 1000.0), (9, 0.0)):
        node.start(ID, 7, None, **LINGER)
        use(node, joules, f"{RESCTRL}/mon_groups/oci-{ID}")
        node.stop(ID, 7, **LINGER)
        node.kernel.now += passes
    node.kernel.now += 61
    assert node.verbs(options=LINGER) == ["end"]
    assert [(line["runs"], line["use"]["core_energy"]) for line in read(node)] == [
        (1, 2.0),
        (1, 6.0),
    ]


def test_a_pod_in_two_ctrl_groups_of_which_one_is_held_and_one_refused_has_all_in_its_line(
    node: Node,
) -> None:
    """The refused one came back without a begin, and the line said that a part was unknown."""
    node.kernel.add_class("gold")
    node.start(ID, 7, **ON)
    node.spawn(8, cgroup_of(OTHER), "gold")
    node.start(OTHER, 8, **ON)
    node.kernel.fork(7, 9)
    use(node, 5, f"{RESCTRL}/gold/mon_groups/{GROUP}")
    node.kernel.die(7)
    node.kernel.die(8)
    node.machine.refusals["rmdir"] = [errno.EBUSY]
    node.repair(options=ON)
    node.kernel.die(9)
    node.repair(options=ON)
    (line,) = read(node)
    assert (line["use"], line["unknown"]) == ({"core_energy": 2.0}, [])


def test_too_many_lines_of_a_key_cost_the_oldest_which_are_counted(node: Node) -> None:
    node.patch.setattr(ending, "MOST_CHARACTERS", 1100)
    with broken(node):
        for pid in (7, 8, 9):
            live(node, pid, pid=pid)
            node.kernel.now += 1
    lines = node.state(ID).owed.lines  # type: ignore[union-attr]
    assert [json.loads(line)["use"]["core_energy"] for line in lines] == [5.0, 6.0]
    assert node.machine.files()[f"{RUN}/runs/dropped_lines"] == b"."


def test_too_many_lines_of_a_node_cost_the_oldest_once_they_cannot_be_written(node: Node) -> None:
    node.patch.setattr(records, "MOST_LINES", 3)
    with broken(node):
        for pid, name in enumerate(("c1", "c2", "c3", "c1", "c4"), 7):
            live(node, 4.0, name, pid)
            node.kernel.now += 2
        done = node.repair()
        assert owed(node) == {"c1": 2, "c4": 1}
        assert node.machine.files()[f"{RUN}/runs/dropped_lines"] == b".."
        assert sum("dropped" in str(outcome.remark) for outcome in done.outcomes) == 2
    assert node.verbs() == ["write"] * 2


def test_none_is_dropped_that_can_be_written(node: Node) -> None:
    node.patch.setattr(records, "MOST_LINES", 1)
    with broken(node):
        for pid, name in enumerate(("c1", "c2", "c3"), 7):
            live(node, 4.0, name, pid)
    assert node.verbs() == ["write"] * 3
    assert len(read(node)) == 3


def test_lines_in_the_record_of_a_newer_version_are_written_as_they_are(node: Node) -> None:
    with broken(node):
        live(node, 4.0)
    newer = '{"version": 2, "id": "2", "name": "\u00e9"}'
    lines = [*node.state(ID).owed.lines, newer]  # type: ignore[union-attr]
    node.edit(f"groups/{ID}.json", version=2, owed={"lines": lines, "why": "", "more": 7})
    done = node.repair()
    assert [outcome.action.verb for outcome in done.outcomes] == ["rebuild", "end"]
    assert "cannot be read" in str(done.outcomes[0].remark)
    text = node.machine.files("/var/log/jobs")[FILE]
    assert isinstance(text, bytes)
    assert text.decode().splitlines() == lines
    assert [file for file in node.machine.files() if ".unreadable-" in file]


# --- The end of all keys: an administrator takes the hook off


def test_the_end_of_all_keys_writes_each_line_also_of_keys_that_live_linger_or_owe(
    node: Node,
) -> None:
    node.start(ID, 7, None, **ON)
    node.start(OTHER, 8, None, **LINGER)
    node.stop(OTHER, 8, **LINGER)
    assert run.end_all_keys(node.options()) == ([], [])
    assert sorted(line["key"] for line in read(node)) == sorted([ID, OTHER])
    assert node.groups() == {}


def test_a_line_that_cannot_be_written_keeps_its_record_until_the_next_end_of_all_keys(
    node: Node,
) -> None:
    node.start(ID, 7, None, **ON)
    node.machine.fs.remove_object("/var/log/jobs")
    (problem,), left = run.end_all_keys(node.options())
    assert problem.startswith(f"key {ID}: could not add what key {ID} used to {FILE}")
    assert (left, node.groups()) == ([], {})
    (problem,), _ = run.end_all_keys(node.options())
    assert "could not add 1 line of history to" in problem
    node.machine.fs.create_dir("/var/log/jobs")
    assert run.end_all_keys(node.options()) == ([], [])
    assert [line["key"] for line in read(node)] == [ID]
