# SPDX-License-Identifier: Apache-2.0
"""The lines of --history, by real processes: many at once, killed, while the file is rotated, and where none fits.

What is in a line: tests/unit/test_ending.py. Beside other hooks, and killed at each of their calls: tests.simulator.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.hook import Hook, created, finish, stopped, task

MANY = pytest.mark.knobs(rmids=200)


@dataclass(frozen=True)
class Recording:
    """A hook with --history, and its file."""

    hook: Hook
    file: Path

    def live(self, *names: str) -> list[str]:
        """These containers come one after the other, and go all at once; what their ends say."""
        with ExitStack() as stack:
            for name in names:
                assert self.hook(created(name, stack.enter_context(task()).pid)).stderr == ""
        outcomes = [finish(process) for process in [self.hook.start(stopped(name)) for name in names]]
        assert {outcome.status for outcome in outcomes} == {0}
        self.hook.assert_clean()
        return [outcome.stderr for outcome in outcomes if outcome.stderr]

    def read(self, *files: Path) -> list[dict[str, Any]]:
        texts = [path.read_text() for path in files or [self.file]]
        return [json.loads(line) for text in texts for line in text.splitlines()]


@pytest.fixture
def recording(hook: Hook, tmp_path: Path) -> Recording:
    file = tmp_path / "log" / "history.jsonl"
    file.parent.mkdir()
    return Recording(hook.with_options(f"--history={file}"), file)


@contextmanager
def mounted(recording: Recording, options: str) -> Iterator[None]:
    """Another file system in the place of the file's directory."""
    place = str(recording.file.parent)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


def test_what_a_full_disk_has_torn_costs_the_next_line_nothing(recording: Recording) -> None:
    with mounted(recording, "size=4k,mode=755"):
        recording.file.write_text("x" * 4000 + "\n")
        (said,) = recording.live("c1")
        assert f"io: could not add what key c1 used to {recording.file}" in said
        assert "ENOSPC" in said
        assert recording.hook.answer("list")["history"]["owed"] == [
            {"file": str(recording.file), "why": "No space left on device: ENOSPC", "lines": 1}
        ]
        text = recording.file.read_text()
        assert len(text) == 4096
        subprocess.run(["mount", "-o", "remount,size=64k", str(recording.file.parent)], check=True)
        assert recording.live("c2") == []
        first, torn, whole = recording.file.read_text().splitlines()
    assert text == f"{first}\n{torn}"
    assert json.loads(whole)["key"] == "c2"


def break_disk(file: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(file.parent)], check=True)
    file.write_text("x" * 4095 + "\n")


def break_directory(file: Path) -> None:
    file.parent.rename(file.parent.with_name("moved"))


def break_file(file: Path) -> None:
    """As an immutable file, also where the file system knows no such attribute."""
    subprocess.run(["mount", "--bind", "-o", "ro", str(file.parent), str(file.parent)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(file.parent)], check=True)


def mend(file: Path) -> None:
    if file.parent.exists():
        subprocess.run(["umount", str(file.parent)], check=True)
    else:
        file.parent.with_name("moved").rename(file.parent)


@MANY
@pytest.mark.parametrize(
    ("breaks", "reason"), [(break_disk, "ENOSPC"), (break_directory, "ENOENT"), (break_file, "EROFS")]
)
def test_twelve_jobs_while_the_file_cannot_be_written_are_twelve_lines(
    recording: Recording, breaks: Callable[[Path], None], reason: str
) -> None:
    names = [f"c{number}" for number in range(12)]
    breaks(recording.file)
    try:
        said = recording.live(*names)
        failed = recording.hook.ask("reconcile", "--snapshot-ttl=0")
        metrics = recording.hook.ask("metrics").stdout
    finally:
        mend(recording.file)
    assert [reason in line for line in said] == [True] * 12
    assert (failed.status, failed.stdout.count("failed: could not add")) == (1, 10), "and the number of the others"
    assert f'resctrl_mon_history_owed{{reason="{reason}"}} 12\n' in metrics
    assert recording.hook.ask("reconcile", "--snapshot-ttl=0").status == 0
    assert sorted(line["key"] for line in recording.read()) == sorted(names)
    assert 'resctrl_mon_history_owed{reason="none"} 0\n' in recording.hook.ask("metrics").stdout
    assert recording.hook.answer("list")["keys"] == []
