"""Full, read-only, out of descriptors or memory, torn, replaced, hidden: what a node can be like when a hook comes.

Here nothing is injected: file systems, limits and files really are like that. What has been broken is mended then (room
is made, a link taken away), one reconcile comes, and all is as if nothing had happened.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
from contextlib import contextmanager
from functools import partial
from itertools import cycle, product
from typing import TYPE_CHECKING, NamedTuple

import build
from tests.faults import strace
from tests.faults.campaign import Campaign, Case
from tests.faults.scene import CREATE, POSTSTOP, RECONCILE, RECONCILES, STAGES, Job, Scene, Stage
from tests.support.hook import UID
from tests.support.storm import is_ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.faults.strace import Call
    from tests.support.storm import Container

PAGE = os.sysconf("SC_PAGE_SIZE")


def run(campaign: Campaign) -> None:
    for kind in (rooms, read_only, descriptors, memory, torn, replaced, stamps, reused, hidden, in_the_middle):
        kind(campaign)


# --- No room


PAGES, INODES = 48, 72
"""More than any stage takes."""


def rooms(campaign: Campaign) -> None:
    stages = (*STAGES, *RECONCILES)
    limits = {"pages": PAGES, "inodes": INODES}
    for what, most in limits.items():
        cases = (
            Case(f"{stage.name}: {left} {what} left", partial(_with_room, stage, what, left))
            for stage, left in product(stages, range(most))
        )
        campaign.all(f"/run has 0 to {most - 1} {what} left", cases)


def _with_room(stage: Stage, what: str, left: int, scene: Scene) -> None:
    job = stage.set(scene)
    status = os.statvfs(scene.room)
    if what == "pages":
        option = f"size={(status.f_blocks - status.f_bfree + left) * PAGE}"
    else:
        option = f"nr_inodes={status.f_files - status.f_ffree + left}"
    with _remounted(scene, option):
        _endure(scene, job)
    _recover(scene)


@contextmanager
def _remounted(scene: Scene, option: str) -> Iterator[None]:
    _remount(scene, option)
    try:
        yield
    finally:
        _remount(scene, "rw,size=64m,nr_inodes=65536")


def _remount(scene: Scene, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", scene.room], check=True)


def read_only(campaign: Campaign) -> None:
    stages = (*STAGES, *RECONCILES)
    campaign.all("/run is read-only", (Case(f"{it.name}: read-only", partial(_read_only, it)) for it in stages))


def _read_only(stage: Stage, scene: Scene) -> None:
    job = stage.set(scene)
    with _remounted(scene, "ro"):
        _endure(scene, job)
    _recover(scene)


def _endure(scene: Scene, job: Job, before: Sequence[str] = (), *, at_least_stderr: bool = False) -> None:
    """Run something that may fail, but is to end as it should. `at_least_stderr`: the other traces may fail, too."""
    if job.verb == RECONCILE:
        scene.expect(scene.reconcile(before=before).status in (0, 2), "how does reconcile end?")
        return
    ran = scene.run(job, before)
    scene.expect(ran.outcome.status == 0, "exit status", ran.outcome.status)
    if not scene.is_done(job):
        scene.expect_told(job, ran, syslog=not at_least_stderr, record=False)
    scene.expect_foreign()


def _recover(scene: Scene) -> None:
    """What was broken is mended: one reconcile, and all is well."""
    scene.count()
    scene.give_back()
    scene.remember()
    scene.actions()
    scene.judge(exact=False)


# --- Limits of the process


MOST_DESCRIPTORS = 16
MEMORY = range(8 << 20, 20 << 20, 64 << 10)
"""Bytes, from where Python does not start to where all is well."""


def descriptors(campaign: Campaign) -> None:
    limits = [("prlimit", f"--nofile={number}") for number in range(MOST_DESCRIPTORS)]
    _limited(campaign, "descriptors", limits)


def memory(campaign: Campaign) -> None:
    # Without the addresses by chance the same limit has the same effect each time.
    limits = [("setarch", "-R", "prlimit", f"--as={number}") for number in MEMORY]
    _limited(campaign, "memory", limits)


def _limited(campaign: Campaign, what: str, limits: Sequence[tuple[str, ...]]) -> None:
    """The limits at which Python itself starts; below them nothing of ours runs."""
    enough = [limit for limit in limits if _starts(limit)]
    begin = max((place for place, limit in enumerate(limits) if limit not in enough), default=-1) + 1
    cases = (
        Case(f"{stage.name}: {limit[-1]}", partial(_with_limit, stage, limit))
        for stage, limit in product(STAGES, limits[begin:])
    )
    campaign.all(f"few {what}, from {limits[begin][-1].lstrip('-')} on", cases)
    campaign.note(f"with {limits[begin - 1][-1]} and less Python does not come as far as the end of our first line")


def _starts(limit: Sequence[str]) -> bool:
    first_line = build.BOOT.partition(";f=")[0]
    done = subprocess.run([*limit, build.PYTHON, "-ISc", first_line], check=False, capture_output=True, env={})
    return done.returncode == 0


def _with_limit(stage: Stage, limit: tuple[str, ...], scene: Scene) -> None:
    _endure(scene, stage.set(scene), limit, at_least_stderr=True)
    _recover(scene)


# --- Files that are not what we wrote


class Record(NamedTuple):
    """A file of ours: the stage in whose scene there is one, and where it is in the run directory."""

    stage: Stage
    place: str

    def __str__(self) -> str:
        part = self.place.replace(UID, "KEY").replace(ID, "CONTAINER")
        return f"{part} ({self.stage.name})"


def _living(scene: Scene) -> Container:
    """A container is in its group, and lives."""
    container = scene.living(1)
    scene.count()
    return container


ID = f"{1:064x}"
LIVING = Stage("living", CREATE, _living)
UNMONITORED, COMPLETED, LINGERING = (
    next(stage for stage in RECONCILES if stage.name == name) for name in ("unmonitored", "completed", "lingering")
)
RECORDS = (
    Record(LIVING, f"groups/{UID}.json"),
    Record(COMPLETED, f"groups/{UID}.json"),
    Record(LIVING, f"members/{ID}.json"),
    Record(UNMONITORED, f"unmonitored/{ID}.json"),
    Record(COMPLETED, "freed"),
)
OTHERS = tuple(
    Record(LIVING, place)
    for place in (
        f"locks/{UID}",
        f"groups/.{UID}.tmp",
        f"members/.{UID}.tmp",
        f"unmonitored/.{ID}.tmp",
        f"building/{UID}",
        f"building/{UID}.old",
        f"mon_groups/{UID}",
        "runs/createRuntime-monitored",
        "mon_data",
    )
)
"""What else there can be a file of."""
PARTS = tuple(Record(LIVING, place) for place in ("groups", "members", "locks", "unmonitored", "runs", "building"))
TURNS = (CREATE, POSTSTOP, RECONCILE)
"""What comes upon a file: a further container, the end of the one that is there, or reconcile."""
GIANT = 17 << 20
"""Bytes; more than any file of ours has."""


def torn(campaign: Campaign) -> None:
    """Cut at every byte; the three that may come upon it take turns."""
    for record in RECORDS:
        size = campaign.ask(partial(_size, record))
        cases = (
            Case(f"{record} cut at {at}: {verb}", partial(_spoilt, record, partial(_cut, at), verb))
            for at, verb in zip(range(size), cycle(TURNS))
        )
        campaign.all(f"{record} cut at each of {size} bytes", cases)


def _size(record: Record, scene: Scene) -> int:
    record.stage.set(scene)
    return (scene.hook.run_dir / record.place).stat().st_size


def _cut(at: int, path: Path) -> None:
    os.truncate(path, at)


def replaced(campaign: Campaign) -> None:
    records = product((*RECORDS, *OTHERS), SPOILS.items())
    parts = product(PARTS, {name: SPOILS[name] for name in ("removed", "a dangling link", "empty")}.items())
    cases = (
        Case(f"{record} is {name}: {verb}", partial(_spoilt, record, spoil, verb))
        for (record, (name, spoil)), verb in product((*records, *parts), TURNS)
    )
    campaign.all("files that are replaced", cases)


def _spoilt(record: Record, spoil: Callable[[Path], None], verb: str, scene: Scene) -> None:
    """Something comes upon a file that is spoilt. What that has left as it was is taken away then."""
    container = record.stage.set(scene).container
    path = scene.hook.run_dir / record.place
    spoil(path)
    spoilt = _identity(path)
    _endure(scene, _turn(scene, container, verb))
    scene.count()
    if spoilt is not None and _identity(path) == spoilt:
        _remove(path)
    container.known = None
    _recover(scene)


def _turn(scene: Scene, container: Container, verb: str) -> Job:
    if verb == CREATE:
        return Job(CREATE, scene.born(2))
    if verb == POSTSTOP:
        container.kill()
    return Job(verb, container)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif _identity(path) is not None:
        path.unlink()


def _anew(make: Callable[[Path], object], path: Path) -> None:
    _remove(path)
    make(path)


def _written(text: bytes) -> Callable[[Path], None]:
    return partial(_anew, partial(_write, text))


def _write(text: bytes, path: Path) -> None:
    path.write_bytes(text)


def _neighbour(path: Path) -> Path:
    """A file of others."""
    top = next(parent for parent in path.parents if (parent / "neighbour").exists())
    return top / "neighbour" / f"{UID}.json"


def _link(path: Path) -> None:
    path.symlink_to(_neighbour(path))


def _dangling(path: Path) -> None:
    path.symlink_to(_neighbour(path).with_name("not-there"))


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _full_directory(path: Path) -> None:
    (path / "of" / "directories").mkdir(parents=True)


def _socket(path: Path) -> None:
    here = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def _device(path: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero


def _giant(path: Path) -> None:
    path.touch()
    os.truncate(path, GIANT)


def _others(path: Path) -> None:
    if _identity(path) is None:
        path.touch()
    os.chown(path, 1000, 1000, follow_symlinks=False)
    if not path.is_symlink():
        path.chmod(0)


SPOILS: dict[str, Callable[[Path], None]] = {
    "removed": _remove,
    "a link to a file of others": partial(_anew, _link),
    "a dangling link": partial(_anew, _dangling),
    "a link to itself": partial(_anew, _loop),
    "an empty directory": partial(_anew, os.mkdir),
    "a directory": partial(_anew, _full_directory),
    "a FIFO": partial(_anew, os.mkfifo),
    "a socket": partial(_anew, _socket),
    "a device": partial(_anew, _device),
    "empty": _written(b""),
    "zeros": _written(b"\0" * 4096),
    "no text": _written(b"\xff\xfe{"),
    "a list": _written(b"[]"),
    "an object": _written(b"{}"),
    "nested deeply": _written(b"[" * 100_000),
    "of a newer version": _written(b'{"version": 2, "key": "%s"}' % UID.encode()),
    "of another key": _written(b'{"version": 1, "key": "other", "kind": "pod"}'),
    "a giant": partial(_anew, _giant),
    "of another user": _others,
}


# --- Clocks and pids


STAMPS = (
    (LIVING, "created_boottime"),
    (COMPLETED, "created_boottime"),
    (COMPLETED, "completed_boottime"),
    (LINGERING, "lingering_since"),
    (LINGERING, "lingering_until"),
)
TIMES = (0.0, 1.5e9, 1e12, -1.0, 1e300, float("nan"), float("inf"))
"""Seconds since boot, for those who come after a clock has jumped."""
STARTTIMES = (0, 1, 2**31, 2**63 - 1)


def stamps(campaign: Campaign) -> None:
    """What is computed with is CLOCK_BOOTTIME alone; it cannot be set, but what it said before can."""
    cases = (
        Case(f"{stage.name}: {field} is {value}: {verb}", partial(_stamped, stage, field, value, verb))
        for (stage, field), value, verb in product(STAMPS, TIMES, TURNS)
    )
    campaign.all("times that are long ago, to come, or none", cases)


def _stamped(stage: Stage, field: str, value: float, verb: str, scene: Scene) -> None:
    container = stage.set(scene).container
    scene.change(container, **{field: value})
    (scene.hook.run_dir / "freed").write_text(f"{value}\n")
    _endure(scene, _turn(scene, container, verb))
    scene.pod_is_gone()
    _recover(scene)


def reused(campaign: Campaign) -> None:
    """A member's pid is somebody else's by now, as its start time tells."""
    cases = (
        Case(f"a pid is reused, {born}: {verb}", partial(_reused, born, verb))
        for born, verb in product(STARTTIMES, TURNS)
    )
    campaign.all("pids that are reused", cases)


def _reused(born: int, verb: str, scene: Scene) -> None:
    container = LIVING.set(scene).container
    container.kill()
    members = scene.hook.key(container.key)["members"]
    members[container.id].update(pid=scene.stranger, starttime=born)
    scene.change(container, members=members)
    _endure(scene, _turn(scene, container, verb))
    _recover(scene)


# --- /proc and resctrl


HIDINGS = {
    "is empty": "mount -t tmpfs none /proc",
    "shows processes alone": "mount -t proc -o subset=pid none /proc",
    "hides processes": "mount -t proc -o hidepid=2 none /proc",
}


def hidden(campaign: Campaign) -> None:
    stages = (*STAGES, *RECONCILES)
    cases = (
        Case(f"{stage.name}: /proc {how}", partial(_hidden, stage, command))
        for stage, (how, command) in product(stages, HIDINGS.items())
    )
    campaign.all("/proc is not what it was", cases)


def _hidden(stage: Stage, command: str, scene: Scene) -> None:
    _endure(scene, stage.set(scene), ("unshare", "--mount", "sh", "-c", f'{command} && exec "$@"', "sh"))
    _recover(scene)


def _groups_removed(scene: Scene) -> None:
    for path in filter(is_ours, scene.world.groups()):
        (scene.world.root / path).rmdir()


def _unmounted(scene: Scene) -> None:
    scene.world.unmount()
    scene.foreign.clear()


def _mounted_anew(scene: Scene) -> None:
    _unmounted(scene)
    scene.world.mount()


DEEDS: dict[str, Callable[[Scene], None]] = {
    "our groups are removed": _groups_removed,
    "resctrl is unmounted": _unmounted,
    "resctrl is mounted anew": _mounted_anew,
}


def in_the_middle(campaign: Campaign) -> None:
    """The hook is stopped behind each call that is about resctrl, or has an effect; meanwhile something is done."""
    for stage in STAGES:
        calls = campaign.ask(partial(_places, stage))
        cases = (
            Case(f"{stage.name}: {how} after {call}", partial(_amid, stage, call, deed))
            for call, (how, deed) in product(calls, DEEDS.items())
        )
        campaign.all(f"resctrl changes behind each of {len(calls)} calls of {stage}", cases)


def _places(stage: Stage, scene: Scene) -> list[Call]:
    job = stage.set(scene)
    scene.perform(job, strace.watched(scene.trace))
    return [call for call in strace.calls(scene.trace) if call.is_on_resctrl or call.has_effect]


def _amid(stage: Stage, call: Call, deed: Callable[[Scene], None], scene: Scene) -> None:
    job = stage.set(scene)
    before: list[bool] = []

    def meanwhile() -> None:
        before.append(scene.is_done(job))
        deed(scene)

    ran = scene.run_stopped(job, call, meanwhile)
    scene.expect(ran.outcome.status == 0, "exit status", ran.outcome.status)
    if not before[0] and not scene.is_done(job):
        scene.expect_told(job, ran)
    if not scene.world.mounted:
        scene.world.mount()
    scene.expect_foreign()
    _recover(scene)
