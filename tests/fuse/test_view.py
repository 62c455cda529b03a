# SPDX-License-Identifier: Apache-2.0
"""view, by the shipped file: what readers see while containers come and go,
and the service is killed.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import consumers, watching
from tests.support.consumers import Entry
from tests.support.hook import Hook, created, end, stopped, task
from tests.support.waiting import wait

KEPT = "keeping "
WAYS: tuple[Callable[[Path], Entry | None], ...] = (consumers.read, consumers.read_by_path)


class Reader(threading.Thread):
    """Reads all keys again and again; `seen`: the keys that it has seen,
    and whether they were completed.
    """

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        self._place = run_dir / "mon_groups"
        self._is_over = threading.Event()
        self.seen: set[tuple[str, bool]] = set()
        self.problems: list[str] = []

    def run(self) -> None:
        while not self._is_over.is_set():
            for key in os.listdir(self._place):
                self._read(key)

    def _read(self, key: str) -> None:
        for way in WAYS:
            try:
                entry = way(self._place / key)
                if entry is not None:
                    entry.check()
                    self.seen.add((key, entry.completed))
            except (consumers.Inconsistent, OSError) as error:
                self.problems.append(f"{way.__name__}: {error!r}")

    def stop(self) -> None:
        self._is_over.set()
        self.join()


@contextmanager
def reading(run_dir: Path) -> Iterator[Reader]:
    reader = Reader(run_dir)
    reader.start()
    try:
        yield reader
    finally:
        reader.stop()


def test_readers_see_whole_entries_while_pods_come_and_go_and_the_service_is_killed(
    hook: Hook,
) -> None:
    def live(reader: Reader, pod: str) -> None:
        with task() as init, task() as sidecar:
            for name, process in ((f"{pod}-a", init), (f"{pod}-b", sidecar)):
                assert hook(created(name, process.pid, pod_uid=uid(pod))).stderr == ""
            wait(lambda: (uid(pod), False) in reader.seen)
            end(init)
            assert hook(stopped(f"{pod}-a")).stderr == ""
        assert hook(stopped(f"{pod}-b")).stderr == ""

    def uid(pod: str) -> str:
        return f"{pod}7a3fb58-4084-4186-9c0e-93cf8c32e2ce"

    hook.view("")  # makes the directory that is read
    pods = "0123"
    with reading(hook.run_dir) as reader:
        process = watching.start(hook, verb="view")
        assert KEPT in watching.listen(process)
        live(reader, pods[0])
        process.kill()
        process.communicate()
        with watching.serving(hook, "view", KEPT):
            for pod in pods[1:]:
                live(reader, pod)
            wait(lambda: {(uid(pod), True) for pod in pods} <= reader.seen)
    assert reader.problems == []


def test_a_key_has_the_kernels_own_files_by_links_in_real_directories(hook: Hook) -> None:
    """Readers of a mount of resctrl skip links to directories.

    Kepler looks for mon_data once, when it starts.
    """
    hook.view("")
    assert os.readlink(hook.run_dir / "mon_data") == f"{hook.resctrl_root}/mon_data"
    with task() as init:
        hook(created("c1", init.pid))
        place = hook.view("c1")
        directories = [place, place / "mon_data", *(place / "mon_data").iterdir()]
        assert [path for path in directories if path.is_symlink() or not path.is_dir()] == []
        group = hook.resctrl_root / "mon_groups/oci-c1"
        counters = [path for path in (place / "mon_data").glob("*/*") if not path.suffix]
        assert {path.name for path in counters} == {
            path.name for path in group.glob("mon_data/*/*")
        }
        assert all(
            path.samefile(group / path.relative_to(place)) for path in (place / "tasks", *counters)
        )


def test_once_beside_the_service_says_that_another_process_keeps_the_view(hook: Hook) -> None:
    with watching.serving(hook, "view", KEPT):
        outcome = hook.ask("view", "--once")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert "another process keeps the view" in outcome.stderr
    assert hook.ask("view", "--once").status == 0


def test_a_view_that_cannot_be_made_is_named_and_once_exits_with_1(hook: Hook) -> None:
    """The last eighth of the file system is left to the records of hooks."""
    hook.run_dir.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=755", "tmpfs", hook.run_dir], check=True
    )
    try:
        (hook.run_dir / "filler").write_bytes(bytes(1_900_000))
        with task() as init:
            assert hook(created("c1", init.pid)).stderr == ""
            outcome = hook.ask("view", "--once")
            assert (outcome.status, "could not make the view of key c1" in outcome.stderr) == (
                1,
                True,
            ), outcome
            (hook.run_dir / "filler").unlink()
            assert hook.view("c1").is_dir()
    finally:
        subprocess.run(["umount", "-l", hook.run_dir], check=True)
