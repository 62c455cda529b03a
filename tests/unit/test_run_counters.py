# SPDX-License-Identifier: Apache-2.0
"""What counts hooks takes no room for long, and goes on counting."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hook.base.models import Options
from hook.reconcile import reconcile
from hook.state import run_counters
from hook.state.records import Records
from hook.state.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNTED = 100_000
COUNTER = "runs/createRuntime-ok"


@pytest.fixture
def path() -> Iterator[Path]:
    """A run directory on a tmpfs, as /run is, in which so many hooks were counted."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        path = Path(directory, "run")
        RunDir(str(path)).count_run("createRuntime", "ok")
        (path / COUNTER).write_text("." * COUNTED)
        yield path


def used(path: Path) -> int:
    return (path / COUNTER).stat().st_blocks * 512


def counted(path: Path) -> int:
    with Records(str(path)) as records:
        return records.runs()["createRuntime", "ok"]


def test_the_room_is_given_back_and_the_count_stays(path: Path) -> None:
    run = RunDir(str(path))
    assert used(path) >= COUNTED, "nothing would be proved"
    run_counters.give_back(run.descriptor)
    assert used(path) <= os.sysconf("SC_PAGESIZE")
    assert counted(path) == COUNTED
    run.count_run("createRuntime", "ok")
    assert counted(path) == COUNTED + 1


def test_no_hook_that_is_counted_meanwhile_is_lost(path: Path) -> None:
    run, over = RunDir(str(path)), threading.Event()

    def give_back() -> None:
        while not over.is_set():
            run_counters.give_back(run.descriptor)

    giver = threading.Thread(target=give_back)
    giver.start()
    try:
        for _ in range(COUNTED // 10):
            run.count_run("createRuntime", "ok")
    finally:
        over.set()
        giver.join()
    assert counted(path) == COUNTED + COUNTED // 10


def test_reconcile_does_it(path: Path, tmp_path: Path) -> None:
    reconcile.plan_actions(Options(run_dir=str(path), resctrl_root=str(tmp_path)))
    assert used(path) >= COUNTED
    reconcile.run(Options(run_dir=str(path), resctrl_root=str(tmp_path)))
    assert used(path) <= os.sysconf("SC_PAGESIZE")
    assert counted(path) == COUNTED


def test_what_cannot_be_done_is_left(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(str(path))
    monkeypatch.setitem(sys.modules, "ctypes", None)
    run_counters.give_back(run.descriptor)
    assert used(path) >= COUNTED


def test_nothing_but_files_is_touched(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("." * COUNTED)
    (path / COUNTER).unlink()
    (path / COUNTER).symlink_to(other)
    os.mkfifo(path / "runs" / "pipe")
    (path / "runs" / "directory").mkdir()
    run_counters.give_back(RunDir(str(path)).descriptor)
    assert other.read_text() == "." * COUNTED


def test_where_nothing_was_counted_there_is_nothing_to_do(path: Path) -> None:
    (path / COUNTER).unlink()
    (path / "runs").rmdir()
    run_counters.give_back(RunDir(str(path)).descriptor)
