# SPDX-License-Identifier: Apache-2.0
"""The run directory: what is recorded is there whole or not at all, whatever fails,
and a lock is held by one.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hook import reclaim, system
from hook.errors import HookError, Reason
from hook.models import Failure, Index, KeyState, Member, Model, MonGroup
from hook.store import RunDir
from hook.words import explain
from tests.simulator.machine import RUN, SimulatedMachine
from tests.unit.stops import Stop, machine, stops

__all__ = ["machine"]  # fixtures

UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
KEY = "c1"
PATH = "/sys/fs/resctrl/mon_groups/oci-c1"
PARTS = ("groups", "members", "unmonitored", "locks")


@pytest.fixture
def run(machine: SimulatedMachine) -> RunDir:
    assert machine.fs.exists("/run")
    return RunDir(RUN)


def make_state(key: str = KEY, **fields: Any) -> KeyState:  # noqa: ANN401
    member = Member(pid=7, starttime=8, group=PATH, cgroup=":/a", taken_from=None)
    groups = [MonGroup(path=PATH, ctrl_group="/")]
    return KeyState(
        **{"key": key, "kind": "container", "groups": groups, "members": {"c1": member}, **fields}
    )


def make_failure(**fields: Any) -> Failure:  # noqa: ANN401
    return Failure(
        **{"container": "c1", "stage": "createRuntime", "reason": "io", "problem": "p", **fields}
    )


def names_in(machine: SimulatedMachine) -> set[str]:
    paths = {path[len(RUN) + 1 :] for path in machine.files()}
    return {path for path in paths if path.startswith(PARTS) and not path.endswith("/")}


def remember(run: RunDir) -> None:
    """What a start records."""
    with run.lock(KEY, 0) as locked:
        run.write(Index, "c1", Index(key=KEY))
        locked.commit(make_state())


# --- The directory itself


@pytest.mark.parametrize(
    ("what", "below", "said"),
    [
        (
            "link",
            "",
            f"{RUN} is a link to /elsewhere, not a directory; hint: `mv {RUN} {RUN}.moved`: ",
        ),
        (
            "file",
            "",
            f"{RUN} is a file, not a directory; hint: `mv {RUN} {RUN}.moved`: the next hook makes",
        ),
        (
            "file",
            "/a/b",
            f"the run directory {RUN}/a/b cannot be used: {RUN} is a file, not a directory; hint: "
            f"`mv {RUN} ",
        ),
        ("no parent", "/none/deeper", "ENOENT"),
    ],
)
def test_a_place_that_is_no_directory_is_refused(
    machine: SimulatedMachine, what: str, below: str, said: str
) -> None:
    """Its modes under any umask: fuse/test_process.py."""
    machine.fs.create_dir("/elsewhere")
    if what == "link":
        machine.fs.create_symlink(RUN, "/elsewhere")
    elif what == "file":
        machine.fs.create_file(RUN)
    with pytest.raises(HookError) as caught:
        RunDir(RUN + below)
    assert said in str(explain(caught.value))
    assert machine.fs.listdir("/elsewhere") == []


@pytest.mark.parametrize(
    ("user", "owner", "mode", "said"),
    [
        *(
            (0, 0, mode, f"uid 0, its mode {mode:04o}; hint: run it as root")
            for mode in (0o775, 0o757, 0o777, 0o1777)
        ),
        (0, 1, 0o755, "is uid 1, its mode 0755"),
        (1000, 1, 0o755, "is uid 1, its mode 0755"),
    ],
)
def test_one_that_others_may_write_is_refused(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, user: int, owner: int, mode: int, said: str
) -> None:
    with monkeypatch.context() as changed:  # undone before the machine is
        changed.setattr(system, "owner_and_mode", lambda _descriptor: (owner, mode))
        changed.setattr(system, "user_id", lambda: user)
        with pytest.raises(HookError) as caught:
            RunDir(run.path)
    assert caught.value.reason == Reason.IO
    assert said in str(explain(caught.value))


@pytest.mark.parametrize(("user", "owner"), [(0, 0), (1000, 0), (1000, 1000)])
def test_one_of_root_or_of_ones_own_is_opened(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, user: int, owner: int
) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(system, "owner_and_mode", lambda _descriptor: (owner, 0o755))
        changed.setattr(system, "user_id", lambda: user)
        assert RunDir(run.path).read_index("c1") is None


@pytest.mark.parametrize("number", [errno.EIO, None])
def test_whatever_stops_the_first_hook_the_next_one_can_work(
    machine: SimulatedMachine, number: int | None
) -> None:
    for stop in stops(machine, number):
        if machine.fs.exists(RUN):
            machine.fs.remove_object(RUN)
        with stop:
            RunDir(RUN)
        run = RunDir(RUN)
        remember(run)
        run.write(Failure, "c1", make_failure())
        assert names_in(machine) == {
            "groups/c1.json",
            "members/c1.json",
            "locks/c1",
            "unmonitored/c1.json",
        }


def test_parts_that_vanished_are_made_again(machine: SimulatedMachine, run: RunDir) -> None:
    writes: list[Callable[[], None]] = [
        lambda: remember(run),
        lambda: run.write(Failure, "c1", make_failure()),
    ]
    for write in writes:
        for part in PARTS:
            machine.fs.remove_object(f"{RUN}/{part}")
        assert run.read_index("c1") is None
        assert run.glance(Failure, "c1") is None
        write()
    assert names_in(machine) == {"unmonitored/c1.json"}


# --- Locks. That they exclude others, whatever the order of calls: the simulator's mutants M1 to
# M3.


def test_a_lock_is_held_by_one_and_others_wait_no_longer_than_they_may(
    machine: SimulatedMachine, run: RunDir
) -> None:
    other = RunDir(RUN)
    with run.lock(KEY, 0):
        for patience in (0.02, 0.0):
            begin = machine.kernel.now
            with pytest.raises(HookError) as caught:
                other.lock(KEY, begin + patience)
            assert caught.value.reason == Reason.LOCK_TIMEOUT
            assert f"the lock of key {KEY}" in explain(caught.value).problem
            assert machine.kernel.now - begin == pytest.approx(patience)
        with other.lock("c2", machine.kernel.now):
            pass
    with other.lock(KEY, machine.kernel.now - 1):
        pass  # one that is free is had after the deadline as well


def test_the_lock_goes_with_an_empty_key_and_stays_with_another(
    machine: SimulatedMachine, run: RunDir
) -> None:
    with run.lock(KEY, 0) as locked:
        assert locked.state is None
    assert names_in(machine) == set()
    with suppress(ZeroDivisionError), run.lock(KEY, 0) as locked:
        locked.commit(make_state())
        raise ZeroDivisionError
    assert names_in(machine) == {"groups/c1.json", "locks/c1"}
    assert stat.S_IMODE(machine.stat(f"{RUN}/locks/{KEY}").st_mode) == 0o600
    with RunDir(RUN).lock(KEY, 0) as locked:
        assert locked.state == make_state()
        locked.clear()
    assert names_in(machine) == set()


def test_a_lock_that_is_replaced_for_ever_is_given_up(
    machine: SimulatedMachine, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count_links(_descriptor: int) -> int:
        machine.kernel.now += 0.1
        return 0

    monkeypatch.setattr(system, "count_links", count_links)
    before = set(machine.caller.descriptors)
    with pytest.raises(HookError) as caught:
        run.lock(KEY, machine.kernel.now + 1)
    assert caught.value.reason == Reason.LOCK_TIMEOUT
    assert machine.caller.descriptors == before


def test_a_lock_is_no_link(machine: SimulatedMachine, run: RunDir) -> None:
    machine.fs.create_symlink(f"{RUN}/locks/{KEY}", "/target")
    with pytest.raises(OSError, match="Too many levels"):
        run.lock(KEY, 0)
    assert not machine.fs.exists("/target")


def test_whatever_fails_in_taking_a_lock_it_is_not_held_afterwards(
    machine: SimulatedMachine, run: RunDir
) -> None:
    remember(run)
    before = set(machine.caller.descriptors)
    for stop in stops(machine, errno.EIO):
        with stop, run.lock(KEY, 0):
            pass
        assert machine.caller.descriptors == before
        with run.lock(KEY, 0) as locked:
            assert locked.state == make_state()


def test_what_did_not_change_is_not_written(machine: SimulatedMachine, run: RunDir) -> None:
    remember(run)
    stop = Stop(machine, 1, errno.EIO)
    with run.lock(KEY, 0) as locked, stop:
        locked.commit(make_state())
    assert stop.calls == 0


def test_a_waiter_gets_the_lock_when_it_is_released(tmp_path: Path) -> None:
    """Its file is another one by then: the holder had emptied the key. On a real file system."""
    locked = RunDir(str(tmp_path)).lock(KEY, 0)

    def give_back() -> None:  # once the other one waits, which the kernel lists with an arrow
        number = (tmp_path / "locks" / KEY).stat().st_ino
        while not re.search(rf"-> .*:{number} ", Path("/proc/locks").read_text()):
            pass
        locked.__exit__(None, None, None)

    other = threading.Thread(target=give_back)
    other.start()
    with RunDir(str(tmp_path)).lock(KEY, system.monotonic() + 1e9):
        assert (tmp_path / "locks" / KEY).exists()
    other.join()


# --- Records


class RecordKind(NamedTuple):
    """A kind of record: where it is, and an old and a new one."""

    model: Any
    path: str
    old: Model
    new: Model


KINDS = (
    RecordKind(KeyState, "groups/c1.json", make_state(), make_state(pod_name="x" * 200)),
    RecordKind(Index, "members/c1.json", Index(key="c1"), Index(key=UID)),
    RecordKind(Failure, "unmonitored/c1.json", make_failure(), make_failure(problem="another")),
)
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda case: case.path)


@each_kind
def test_what_is_written_is_read_and_is_roots_alone_and_one_line(
    machine: SimulatedMachine, run: RunDir, monkeypatch: pytest.MonkeyPatch, kind: RecordKind
) -> None:
    """Also where the kernel takes a part of a write;
    links in the way are replaced and not followed.
    """
    model, path, old, new = kind
    machine.add("/target", b"precious")
    write = machine.write
    monkeypatch.setattr(machine, "write", lambda descriptor, data: write(descriptor, data[:7]))
    assert run.read(model, "c1") is None
    for in_the_way, record in ((path, new), (path.replace("c1.json", ".c1.tmp"), old)):
        machine.fs.create_symlink(f"{RUN}/{in_the_way}", "/target")
        run.write(model, "c1", record)
        assert run.read(model, "c1") == record
        assert names_in(machine) == {path}
        assert machine.stat(f"{RUN}/{path}", follow_symlinks=False).st_mode == stat.S_IFREG | 0o600
        text = machine.files()[f"{RUN}/{path}"]
        assert isinstance(text, bytes)
        assert text.index(b"\n") == len(text) - 1
    assert machine.files("/")["/target"] == b"precious"
    run.remove(model, "c1")
    run.remove(model, "c1")
    assert run.read(model, "c1") is None


@pytest.mark.parametrize("replaces", [True, False])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.ENOENT, None])
@each_kind
def test_a_write_that_is_stopped_leaves_the_old_record_or_the_new(
    machine: SimulatedMachine,
    run: RunDir,
    number: int | None,
    replaces: bool,
    kind: RecordKind,
) -> None:
    """One that fails leaves nothing else; what one that is killed leaves,
    the next one tidies up.
    """
    model, path, old, new = kind
    calls = 0
    for stop in stops(machine, number):
        run.remove(model, "c1")
        if replaces:
            run.write(model, "c1", old)
        with stop:
            run.write(model, "c1", new)
        left = old if replaces else None
        is_written = run.read(model, "c1") == new
        assert is_written or run.read(model, "c1") == left
        if number is None:
            run.write(model, "c1", new)
        assert names_in(machine) == ({path} if number is None or is_written or replaces else set())
        calls = max(calls, stop.at)
    assert calls == 5, "open, write, close, rename, and none fails"


def test_an_index_is_read_or_reported_and_a_failure_read_or_none(
    machine: SimulatedMachine, run: RunDir
) -> None:
    assert run.read_index("c1") is None
    run.write(Index, "c1", Index(key=UID))
    run.write_index(
        "c1@7-100",
        KeyState(key="former", kind="container"),
        Member(pid=7, starttime=100, group="/g/mon_groups/a"),
    )
    assert (run.read_index("c1"), run.read_index("c1@7-100"), run.read_index("c2")) == (
        UID,
        None,
        None,
    )
    for content in (b"", b"{", b"{}", b'{"key": "../x"}', b'{"key": "c1", "version": 2}', b"\xff"):
        machine.add(f"{RUN}/members/c1.json", content)
        machine.add(f"{RUN}/unmonitored/c1.json", content)
        assert run.glance(Failure, "c1") is None
        with pytest.raises(HookError) as caught:
            run.read_index("c1")
        assert explain(caught.value).problem.startswith("the index of container c1 cannot be read")
        assert f"{RUN}/members/c1.json" in str(explain(caught.value))


# --- Marks


def test_what_was_freed_lately(machine: SimulatedMachine, run: RunDir) -> None:
    assert not reclaim.freed_within(run, 1e9)
    run.note_freed()
    begin = machine.kernel.now
    for passed, expected in ((0, True), (1.5, True), (1.6, False)):
        machine.kernel.now = begin + passed
        assert reclaim.freed_within(run, 1.5) is expected
    run.note_freed()
    assert reclaim.freed_within(run, 0)
    for text in ("", "soon", "nan", "9" * 100):
        machine.add(f"{RUN}/freed", text.encode())
        assert not reclaim.freed_within(run, 1.5), text


# --- State that cannot be read


def find_kept(machine: SimulatedMachine, run: RunDir) -> list[str]:
    """Read the key, see that it is recovering and that this is said once,
    and return what was kept.
    """
    run.complaints.clear()
    state = run.read_key(KEY)
    assert state is not None
    assert (state.recovering, state.key, state.members, state.groups) == (True, KEY, {}, [])
    assert run.read_key(KEY) == state
    (complaint,) = run.complaints
    kept = [name for name in machine.fs.listdir(f"{RUN}/groups") if ".json.unreadable-" in name]
    assert all(f"{RUN}/groups/{name}" in explain(complaint).hint for name in kept)
    return [f"{RUN}/groups/{name}" for name in kept]


def test_a_state_that_was_torn_at_any_byte_is_kept_aside(
    machine: SimulatedMachine, run: RunDir
) -> None:
    whole = json.dumps(make_state().model_dump()).encode()
    for size in range(len(whole)):
        machine.add(f"{RUN}/groups/{KEY}.json", whole[:size])
        (kept,) = find_kept(machine, run)
        assert machine.files()[kept] == whole[:size]
        machine.fs.remove_object(kept)
    machine.add(f"{RUN}/groups/{KEY}.json", whole)
    assert run.read_key(KEY) == make_state(), "only the newline is missing"


FOREIGN: dict[str, dict[str, object]] = {
    "newer": {"version": 2},
    "newer, with lines of another form": {"version": 2, "owed": 7},
    "another key": {"key": "c2"},
    "a key that is none": {"key": "../c1"},
    "a group elsewhere": {"groups": [{"path": "/etc", "ctrl_group": "/"}]},
    "a member's group elsewhere": {"members": {"c1": {"pid": 1, "starttime": 1, "group": "/"}}},
    "a kind unknown": {"kind": "vm"},
}
NONE = [
    b"",
    b"\0" * 100,
    b"\xff\xfe",
    b"[]",
    b"null",
    b"7",
    b"[" * 100_000,
    b'{"key": "\\ud800"}',
    b"{}{}",
]
UNREADABLE = {
    **{
        name: json.dumps({**make_state().model_dump(), **change}).encode()
        for name, change in FOREIGN.items()
    },
    **{repr(text[:9]): text for text in NONE},
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_state_that_is_not_ours_to_read_is_kept_aside(
    machine: SimulatedMachine, run: RunDir, name: str
) -> None:
    machine.add(f"{RUN}/groups/{KEY}.json", UNREADABLE[name])
    assert [machine.files()[path] for path in find_kept(machine, run)] == [UNREADABLE[name]]
    why = "it is of 'c2'" if name == "another key" else next(iter(FOREIGN.get(name, [""])))
    assert f"cannot be read ({why}" in explain(run.complaints[0]).problem


@pytest.mark.parametrize("what", ["link", "dangling link", "directory", "full directory", "giant"])
def test_what_is_no_file_of_ours_is_kept_aside(
    machine: SimulatedMachine, run: RunDir, what: str
) -> None:
    """FIFOs: fuse/test_process.py."""
    path = f"{RUN}/groups/{KEY}.json"
    if "link" in what:
        machine.fs.create_symlink(path, "/target")
        if what == "link":
            machine.add("/target", json.dumps(make_state().model_dump()).encode())
    elif "directory" in what:
        machine.fs.create_dir(path + "/sub" if what == "full directory" else path)
    else:
        machine.add(path, b" " * ((16 << 20) + 1))
    mode = machine.stat(path, follow_symlinks=False).st_mode
    assert [
        machine.stat(path, follow_symlinks=False).st_mode for path in find_kept(machine, run)
    ] == [mode]
    assert machine.fs.exists("/target") is (what == "link")


def test_the_name_decides_the_kind_of_a_recovering_key(
    machine: SimulatedMachine, run: RunDir
) -> None:
    for key, kind in (
        (UID, "pod"),
        (UID.upper(), "container"),
        ("c1", "container"),
        ("f" * 64, "container"),
    ):
        machine.add(f"{RUN}/groups/{key}.json", b"")
        state = run.read_key(key)
        assert state is not None
        assert state.kind == kind


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_a_state_that_cannot_be_read_now_is_left_where_it_is(
    machine: SimulatedMachine, run: RunDir, number: int
) -> None:
    run.write(KeyState, "c1", make_state())
    machine.refusals["open"] = [number]
    with pytest.raises(OSError, match=os.strerror(number)):
        run.read_key(KEY)
    assert names_in(machine) == {"groups/c1.json"}
    assert run.read_key(KEY) == make_state()


@pytest.mark.parametrize("number", [errno.EIO, None])
def test_a_key_that_cannot_be_read_is_never_taken_for_a_new_one(
    machine: SimulatedMachine, run: RunDir, number: int | None
) -> None:
    for stop in stops(machine, number):
        machine.fs.remove_object(f"{RUN}/groups")
        machine.add(f"{RUN}/groups/{KEY}.json", b"torn")
        with stop:
            run.read_key(KEY)
        state = run.read_key(KEY)
        assert state is not None
        assert state.recovering
