# SPDX-License-Identifier: Apache-2.0
"""The run directory: what is recorded is there whole or not at all, whatever fails, and a lock is held by one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import posix
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hook.base import system
from hook.base.errors import HookError, Reason
from hook.base.models import Failure, Index, KeyState, Member, MonGroup
from hook.state.store import RunDir
from tests.unit.faults import MANNERS, Clock, Faults, Killed, Manner, each_call_fails

UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
KEY = "c1"
PATH = "/sys/fs/resctrl/mon_groups/oci-c1"
PARTS = ("groups", "members", "unmonitored", "locks")
FOR_EVER = 1e9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(system, "monotonic", clock.monotonic)
    monkeypatch.setattr(system, "sleep", clock.sleep)
    return clock


@pytest.fixture
def directories(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes what the run directories of a test have open; a hook leaves that to its end."""
    opened: list[int] = []
    real = system.open_directory

    def open_directory(path: str) -> int:
        opened.append(real(path))
        return opened[-1]

    monkeypatch.setattr(system, "open_directory", open_directory)
    yield
    for descriptor in opened:
        with suppress(OSError):  # who holds it for a `with` has closed it
            os.close(descriptor)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def run(place: Path, directories: None) -> RunDir:  # noqa: ARG001
    return RunDir(str(place))


def state(key: str = KEY, **fields: Any) -> KeyState:  # noqa: ANN401
    member = Member(pid=7, starttime=8, group=PATH, cgroup=":/a", taken_from=None)
    groups = [MonGroup(path=PATH, ctrl_group="/")]
    return KeyState(**{"key": key, "kind": "container", "groups": groups, "members": {"c1": member}, **fields})


def names_in(place: Path, *parts: str) -> set[str]:
    return {f"{part}/{name}" for part in parts or PARTS for name in os.listdir(place / part)}


# --- The directory itself


def test_it_is_for_consumers_to_enter_and_its_parts_are_not(run: RunDir, place: Path) -> None:
    assert run.path == str(place)
    modes = {path.name: path.stat().st_mode & 0o7777 for path in (place, *place.iterdir())}
    assert modes == {"run": 0o755, **dict.fromkeys((*PARTS, "runs"), 0o700)}


def test_its_parent_is_not_made(place: Path, directories: None) -> None:  # noqa: ARG001
    with pytest.raises(HookError, match="ENOENT"):
        RunDir(str(place / "deeper"))


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o1777])
def test_one_that_others_may_write_is_refused(place: Path, directories: None, mode: int) -> None:  # noqa: ARG001
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(HookError) as caught:
        RunDir(str(place))
    assert caught.value.reason == Reason.IO
    assert f"{mode:04o}" in caught.value.hint


def test_one_of_another_user_is_refused(
    place: Path,
    directories: None,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system, "owner_and_mode", lambda _descriptor: (os.geteuid() + 1, 0o755))
    with pytest.raises(HookError, match="is not owned by root"):
        RunDir(str(place))


def test_who_is_not_root_cannot_open_that_of_root(
    place: Path,
    directories: None,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system, "owner_and_mode", lambda _descriptor: (0, 0o755))
    monkeypatch.setattr(system, "user_id", lambda: 1000)
    with pytest.raises(HookError, match="is root's; hint: run it as root"):
        RunDir(str(place))


@pytest.mark.parametrize("what", ["link", "file"])
def test_what_is_no_directory_is_refused(tmp_path: Path, place: Path, what: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    if what == "link":
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.touch()
    with pytest.raises(HookError, match=r"Not a directory|Too many levels"):
        RunDir(str(place))
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("manner", MANNERS)
def test_whatever_stops_the_first_hook_the_next_one_can_work(
    tmp_path: Path,
    directories: None,  # noqa: ARG001
    manner: Manner,
) -> None:
    def attempt(faults: Faults) -> None:
        place = tmp_path / f"run-{faults.at}"
        umask = os.umask(0o077)
        try:
            with faults.injected():
                RunDir(str(place))
        except (HookError, Killed):
            pass
        finally:
            assert os.umask(umask) == 0o077
        run = RunDir(str(place))
        with run.lock(KEY, 0) as locked:
            run.write_index("c1", KEY)
            locked.commit(state())
        run.write(Failure, "c1", failure())
        assert names_in(place) == {"groups/c1.json", "members/c1.json", "locks/c1", "unmonitored/c1.json"}

    assert each_call_fails(attempt, manner) > 5


def test_parts_that_vanished_are_made_again(run: RunDir, place: Path) -> None:
    def vanish() -> None:
        for part in PARTS:
            shutil.rmtree(place / part)

    vanish()
    assert run.read_index("c1") is None
    assert run.glance(Failure, "c1") is None
    with run.lock(KEY, 0) as locked:
        run.write_index("c1", KEY)
        locked.commit(state())
    vanish()
    run.write(Failure, "c1", failure())
    assert names_in(place) == {"unmonitored/c1.json"}


# --- Locks


def test_a_lock_is_held_by_one_and_others_wait_no_longer_than_they_may(run: RunDir, place: Path, clock: Clock) -> None:
    other = RunDir(str(place))
    with run.lock(KEY, FOR_EVER):
        with pytest.raises(HookError) as caught:
            other.lock(KEY, clock.now + 0.02)
        assert caught.value.reason == Reason.LOCK_TIMEOUT
        assert str(place / "locks" / KEY) in caught.value.tried
        with other.lock("c2", clock.now):
            pass
    with other.lock(KEY, clock.now - 1):
        pass  # one that is free is had after the deadline as well


def test_a_lock_without_patience_is_not_waited_for(run: RunDir, place: Path, clock: Clock) -> None:
    with run.lock(KEY, FOR_EVER), pytest.raises(HookError):
        RunDir(str(place)).lock(KEY, clock.now)


def test_the_wait_ends_where_the_runtime_left_us_sigalrm_blocked(run: RunDir, place: Path) -> None:
    former = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    try:
        with run.lock(KEY, FOR_EVER), pytest.raises(HookError):
            RunDir(str(place)).lock(KEY, system.monotonic() + 0.02)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def test_an_alarm_that_comes_late_does_nothing(tmp_path: Path) -> None:
    """The lock was had in the instant in which the wait was over."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    assert system.wait_for_flock(descriptor, system.monotonic() + FOR_EVER)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    signal.raise_signal(signal.SIGALRM)
    os.close(descriptor)


def test_a_waiter_gets_the_lock_when_it_is_released(run: RunDir, place: Path) -> None:
    locked = run.lock(KEY, FOR_EVER)
    locked.commit(state())

    def give_back() -> None:  # once somebody waits, whom the kernel lists with an arrow
        number = (place / "locks" / KEY).stat().st_ino
        while not re.search(rf"-> .*:{number} ", Path("/proc/locks").read_text()):
            pass
        locked.__exit__(None, None, None)

    other = threading.Thread(target=give_back)
    other.start()
    with RunDir(str(place)).lock(KEY, FOR_EVER) as had:
        assert had.state == state()
    other.join()


def test_the_lock_goes_with_an_empty_key_and_stays_with_another(run: RunDir, place: Path) -> None:
    with run.lock(KEY, 0) as locked:
        assert locked.state is None
    assert names_in(place) == set()
    with run.lock(KEY, 0) as locked:
        locked.commit(state())
    assert names_in(place) == {"groups/c1.json", "locks/c1"}
    with run.lock(KEY, 0) as locked:
        assert locked.state == state()
        locked.clear()
    assert names_in(place) == set()


def test_a_lock_is_given_back_after_an_exception(run: RunDir, place: Path) -> None:
    def fail() -> None:
        with run.lock(KEY, 0) as locked:
            locked.commit(state())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with RunDir(str(place)).lock(KEY, 0) as locked:
        assert locked.state == state()


def test_the_file_goes_while_its_lock_is_held(run: RunDir, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other way round it could be another's by then."""
    close, there = system.close, []

    def closing(descriptor: int) -> None:
        there.append((place / "locks" / KEY).exists())
        close(descriptor)

    with run.lock(KEY, 0):
        monkeypatch.setattr(system, "close", closing)
    assert there == [False]


def as_the_wait_begins(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Have this done, once, when somebody is about to wait for a lock."""
    real = system.wait_for_flock

    def wait(descriptor: int, deadline: float) -> bool:
        monkeypatch.setattr(system, "wait_for_flock", real)
        action()
        return real(descriptor, deadline)

    monkeypatch.setattr(system, "wait_for_flock", wait)


def test_a_lock_whose_file_went_while_waiting_is_none(
    run: RunDir, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiter gets the flock on a file that nobody else can find any more: it must take the one of that name."""
    first = run.lock(KEY, FOR_EVER)
    as_the_wait_begins(monkeypatch, lambda: first.__exit__(None, None, None))
    with RunDir(str(place)).lock(KEY, FOR_EVER) as second:
        with (place / "locks" / KEY).open() as named, pytest.raises(BlockingIOError):
            fcntl.flock(named, fcntl.LOCK_EX | fcntl.LOCK_NB)
        second.commit(state())


def test_a_lock_file_replaced_while_waiting_is_locked_by_its_maker(
    run: RunDir, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run.lock(KEY, FOR_EVER)
    late: list[Any] = []

    def overtake() -> None:
        first.__exit__(None, None, None)
        late.append(RunDir(str(place)).lock(KEY, FOR_EVER))

    as_the_wait_begins(monkeypatch, overtake)
    with pytest.raises(HookError) as caught:
        RunDir(str(place)).lock(KEY, system.monotonic() + 0.02)
    assert caught.value.reason == Reason.LOCK_TIMEOUT
    late.pop().__exit__(None, None, None)
    assert names_in(place) == set()


def test_a_lock_that_is_replaced_for_ever_is_given_up(
    run: RunDir, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def passing() -> float:
        clock.now += 0.1
        return clock.now

    monkeypatch.setattr(system, "monotonic", passing)
    monkeypatch.setattr(system, "same_file", lambda *_: False)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(HookError) as caught:
        run.lock(KEY, clock.now + 1)
    assert caught.value.reason == Reason.LOCK_TIMEOUT
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_lock_is_roots_alone(run: RunDir, place: Path) -> None:
    umask = os.umask(0)
    try:
        with run.lock(KEY, 0):
            assert (place / "locks" / KEY).stat().st_mode & 0o7777 == 0o600
    finally:
        os.umask(umask)


def test_a_lock_is_no_link(run: RunDir, place: Path, tmp_path: Path) -> None:
    (place / "locks" / KEY).symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="Too many levels"):
        run.lock(KEY, 0)
    assert not (tmp_path / "target").exists()


def test_whatever_fails_in_taking_a_lock_it_is_not_held_afterwards(run: RunDir, place: Path) -> None:
    run.write(KeyState, "c1", state())

    def attempt(faults: Faults) -> None:
        before = len(os.listdir("/proc/self/fd"))
        with faults.injected():
            try:
                with run.lock(KEY, 0):
                    pass
            except OSError:
                pass
        assert len(os.listdir("/proc/self/fd")) == before
        with RunDir(str(place)).lock(KEY, 0) as locked:
            assert locked.state == state()

    assert each_call_fails(attempt) > 5


def test_what_did_not_change_is_not_written(run: RunDir) -> None:
    run.write(KeyState, "c1", state())
    with run.lock(KEY, 0) as locked:
        faults = Faults(1)
        with faults.injected():
            locked.commit(state())
        assert faults.calls == 0


# --- State that cannot be read


def is_set_aside(run: RunDir, place: Path, key: str = KEY) -> list[Path]:
    """Read the key, see that it is recovering and said so, and return what was kept."""
    found = run.read_key(key)
    assert found is not None
    assert (found.recovering, found.key, found.members, found.groups) == (True, key, {}, [])
    assert len(run.complaints) == 1
    kept = [path for path in (place / "groups").iterdir() if ".json.unreadable-" in path.name]
    assert all(str(path) in run.complaints[0].hint for path in kept)
    assert run.read_key(key) == found
    assert len(run.complaints) == 1, "said once"
    return kept


def test_what_is_written_is_read(run: RunDir) -> None:
    assert run.read_key(KEY) is None
    run.write(KeyState, "c1", state())
    assert run.read_key(KEY) == state()
    run.remove(KeyState, "c1")
    run.remove(KeyState, "c1")
    assert run.read_key(KEY) is None
    assert run.complaints == []


def test_a_state_that_was_torn_at_any_byte_is_kept_aside(run: RunDir, place: Path) -> None:
    path = place / "groups" / f"{KEY}.json"
    run.write(KeyState, "c1", state())
    whole = path.read_bytes()
    for size in range(len(whole) - 1):
        path.write_bytes(whole[:size])
        kept = is_set_aside(run, place)
        assert [it.read_bytes() for it in kept] == [whole[:size]]
        kept[0].unlink()
        run.complaints.clear()
    path.write_bytes(whole[:-1])
    assert run.read_key(KEY) == state(), "only the newline is missing"


FOREIGN: dict[str, object] = {
    "newer": {"version": 2},
    "older": {"version": 0},
    "another key": {"key": "c2"},
    "a key that is none": {"key": "../c1"},
    "no key": {"key": None},
    "a group elsewhere": {"groups": [{"path": "/etc", "ctrl_group": "/"}]},
    "a group with ..": {"groups": [{"path": "/a/../b/mon_groups/x", "ctrl_group": "/"}]},
    "a member's group elsewhere": {"members": {"c1": {"pid": 1, "starttime": 1, "group": "/"}}},
    "pid 0": {"members": {"c1": {"pid": 0, "starttime": 1, "group": PATH}}},
    "a kind unknown": {"kind": "vm"},
}


@pytest.mark.parametrize("change", FOREIGN.values(), ids=FOREIGN)
def test_a_state_that_is_not_ours_to_read_is_kept_aside(run: RunDir, place: Path, change: dict[str, object]) -> None:
    text = json.dumps({**state().model_dump(), **change})
    (place / "groups" / f"{KEY}.json").write_text(text)
    assert [path.read_text() for path in is_set_aside(run, place)] == [text]
    why = "it is of 'c2'" if change == {"key": "c2"} else next(iter(change))
    assert f"cannot be read ({why}" in run.complaints[0].problem


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 100, b"\xff\xfe", b"[]", b"null", b"7", b"[" * 100_000, b'{"key": "\\ud800"}', b"{}{}"]
)
def test_a_state_that_is_no_object_is_kept_aside(run: RunDir, place: Path, content: bytes) -> None:
    (place / "groups" / f"{KEY}.json").write_bytes(content)
    assert [path.read_bytes() for path in is_set_aside(run, place)] == [content]


@pytest.mark.parametrize("what", ["link", "dangling link", "directory", "full directory", "pipe", "giant"])
def test_what_is_no_file_of_ours_is_kept_aside(run: RunDir, place: Path, tmp_path: Path, what: str) -> None:
    path, target = place / "groups" / f"{KEY}.json", tmp_path / "target"
    if "link" in what:
        path.symlink_to(target)
        if what == "link":
            target.write_text(json.dumps(state().model_dump()))
    elif "directory" in what:
        (path / "sub" if what == "full directory" else path).mkdir(parents=True)
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, (16 << 20) + 1)
    mode = path.lstat().st_mode
    assert [it.lstat().st_mode for it in is_set_aside(run, place)] == [mode]
    assert target.exists() is (what == "link")


def test_the_name_decides_the_kind_of_a_recovering_key(run: RunDir, place: Path) -> None:
    for key, kind in ((UID, "pod"), (UID.upper(), "container"), ("c1", "container"), ("f" * 64, "container")):
        (place / "groups" / f"{key}.json").touch()
        found = run.read_key(key)
        assert found is not None
        assert found.kind == kind


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_a_state_that_cannot_be_read_now_is_left_where_it_is(run: RunDir, place: Path, number: int) -> None:
    run.write(KeyState, "c1", state())
    with Faults(1, number=number).injected(), pytest.raises(OSError, match=os.strerror(number)):
        run.read_key(KEY)
    assert names_in(place) == {"groups/c1.json"}
    assert run.read_key(KEY) == state()


@pytest.mark.parametrize("manner", MANNERS)
def test_a_key_that_cannot_be_read_is_never_taken_for_a_new_one(run: RunDir, place: Path, manner: Manner) -> None:
    def attempt(faults: Faults) -> None:
        shutil.rmtree(place / "groups")
        (place / "groups").mkdir(0o700)
        (place / "groups" / f"{KEY}.json").write_bytes(b"torn")
        try:
            with faults.injected():
                run.read_key(KEY)
        except (OSError, Killed):
            pass
        found = run.read_key(KEY)
        assert found is not None
        assert found.recovering

    assert each_call_fails(attempt, manner) > 3


# --- Writes


def failure(**fields: Any) -> Failure:  # noqa: ANN401
    return Failure(**{"container": "c1", "stage": "createRuntime", "reason": "io", "problem": "p", **fields})


class Record:
    """One kind of file: what it is called, how it is written, and an old and a new content."""

    def __init__(self, path: str, write: Callable[[RunDir, Any], object], old: Any, new: Any) -> None:  # noqa: ANN401
        self.path = path
        self.write = write
        self.old = old
        self.new = new


RECORDS = {
    "key": Record("groups/c1.json", lambda run, it: run.write(KeyState, "c1", it), state(), state(pod_name="x" * 200)),
    "index": Record("members/c1.json", lambda run, it: run.write_index("c1", it.key), Index(key="c1"), Index(key=UID)),
    "failure": Record(
        "unmonitored/c1.json", lambda run, it: run.write(Failure, "c1", it), failure(), failure(problem="another")
    ),
}
each_record = pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)


@pytest.mark.parametrize("replaces", [True, False])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.ENOENT])
@each_record
def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(
    run: RunDir, place: Path, record: Record, number: int, replaces: bool
) -> None:
    path = place / record.path

    def attempt(faults: Faults) -> None:
        path.unlink(missing_ok=True)
        if replaces:
            record.write(run, record.old)
        failed = False
        try:
            with faults.injected():
                record.write(run, record.new)
        except OSError:
            failed = True
        found = json.loads(path.read_text()) if path.exists() else None
        assert found == ((record.old.model_dump() if replaces else None) if failed else record.new.model_dump())
        assert names_in(place) == ({record.path} if found else set())

    assert each_call_fails(attempt, number=number) == 4, "open, write, close, rename"


@each_record
def test_a_write_that_is_killed_leaves_the_old_or_the_new_and_the_next_one_tidies_up(
    run: RunDir, place: Path, record: Record
) -> None:
    path = place / record.path

    def attempt(faults: Faults) -> None:
        record.write(run, record.old)
        try:
            with faults.injected():
                record.write(run, record.new)
        except Killed:
            pass
        assert json.loads(path.read_text()) in (record.old.model_dump(), record.new.model_dump())
        record.write(run, record.new)
        assert names_in(place) == {record.path}

    assert each_call_fails(attempt, "killed") == 4


@each_record
def test_a_write_goes_on_where_the_kernel_took_a_part(
    run: RunDir, place: Path, monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    faults = Faults(0)
    faults.beneath = SimpleNamespace(**{**vars(posix), "write": lambda fd, data: posix.write(fd, data[:7])})
    monkeypatch.setattr(system, "posix", faults)
    record.write(run, record.new)
    assert json.loads((place / record.path).read_text()) == record.new.model_dump()
    assert faults.calls > 5


@each_record
def test_what_is_written_is_roots_alone_and_one_line(run: RunDir, place: Path, record: Record) -> None:
    umask = os.umask(0)
    try:
        record.write(run, record.new)
    finally:
        os.umask(umask)
    assert (place / record.path).stat().st_mode & 0o7777 == 0o600
    assert (place / record.path).read_text().count("\n") == 1


@each_record
def test_a_link_in_the_way_is_replaced_and_not_followed(
    run: RunDir, place: Path, tmp_path: Path, record: Record
) -> None:
    (tmp_path / "target").write_text("precious")
    (place / record.path).symlink_to(tmp_path / "target")
    record.write(run, record.new)
    assert not (place / record.path).is_symlink()
    assert (tmp_path / "target").read_text() == "precious"


@each_record
def test_a_link_under_the_temporary_name_is_not_followed(
    run: RunDir, place: Path, tmp_path: Path, record: Record
) -> None:
    (tmp_path / "target").write_text("precious")
    (place / record.path).with_name(".c1.tmp").symlink_to(tmp_path / "target")
    record.write(run, record.old)
    assert (tmp_path / "target").read_text() == "precious"
    assert names_in(place) == {record.path}


# --- The index, the failures, and what else is noted


def test_the_index(run: RunDir) -> None:
    assert run.read_index("c1") is None
    run.write_index("c1", UID)
    assert (run.read_index("c1"), run.read_index("c2")) == (UID, None)
    run.remove(Index, "c1")
    run.remove(Index, "c1")
    assert run.read_index("c1") is None
    assert run.complaints == []


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b'{"key": "../x"}', b'{"key": "c1", "version": 2}', b"\xff"])
def test_an_unreadable_index_is_reported(run: RunDir, place: Path, content: bytes) -> None:
    (place / "members" / "c1.json").write_bytes(content)
    with pytest.raises(HookError, match="the index of container c1 cannot be read") as caught:
        run.read_index("c1")
    assert str(place / "members" / "c1.json") in str(caught.value)


def test_the_failures(run: RunDir) -> None:
    assert run.glance(Failure, "c1") is None
    run.write(Failure, "c1", failure(pid=7))
    assert run.glance(Failure, "c1") == failure(pid=7)
    run.remove(Failure, "c1")
    run.remove(Failure, "c1")
    assert run.glance(Failure, "c1") is None


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"\xff", b'{"version": 2}'])
def test_a_failure_that_cannot_be_read_is_none(run: RunDir, place: Path, content: bytes) -> None:
    (place / "unmonitored" / "c1.json").write_bytes(content)
    assert run.glance(Failure, "c1") is None


def test_what_was_freed_lately(run: RunDir, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not run.freed_within(FOR_EVER)
    now = [5000.0]
    monkeypatch.setattr(system, "boottime", lambda: now[0])
    run.note_freed()
    for passed, expected in ((0, True), (1.5, True), (1.6, False)):
        now[0] = 5000.0 + passed
        assert run.freed_within(1.5) is expected
    run.note_freed()
    assert run.freed_within(0)
    for text, expected in (("", False), ("soon", False), ("nan", False), ("9" * 100, False)):
        (place / "freed").write_text(text)
        assert run.freed_within(1.5) is expected, text


def test_a_first_time_comes_once_for_each_thing(run: RunDir, place: Path) -> None:
    assert [run.is_first("a"), run.is_first("a"), run.is_first("b")] == [True, False, True]
    with Faults(1, number=errno.ENOSPC).injected():
        assert run.is_first("c"), "better twice than never"
    assert RunDir(str(place)).is_first("a") is False
