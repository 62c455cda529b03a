# SPDX-License-Identifier: Apache-2.0
"""The lines of --history, by real processes: many at once while the file is rotated, and where none fits.

What is in a line, and files that cannot be written: tests/unit/test_ending.py. Beside other hooks, and killed at each
of their calls: tests.simulator.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.inside import REAL_ROOT
from tests.support.hook import Hook, created, finish, stopped, task

CROWD = 64 if REAL_ROOT is None else 6
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
        outcomes = [finish(it) for it in [self.hook.start(stopped(name)) for name in names]]
        assert {it.status for it in outcomes} == {0}
        self.hook.assert_clean()
        return [it.stderr for it in outcomes if it.stderr]

    def read(self, *files: Path) -> list[dict[str, Any]]:
        texts = [path.read_text() for path in files or [self.file]]
        return [json.loads(line) for text in texts for line in text.splitlines()]


@pytest.fixture
def recording(hook: Hook, tmp_path: Path) -> Recording:
    file = tmp_path / "log" / "history.jsonl"
    file.parent.mkdir()
    return Recording(hook.with_options(f"--history={file}"), file)


@MANY
def test_those_that_end_at_once_have_a_line_each_while_the_file_is_rotated(recording: Recording) -> None:
    names = [f"c{number}" for number in range(CROWD)]
    with ExitStack() as stack:
        for name in names:
            recording.hook(created(name, stack.enter_context(task()).pid))
    started = [recording.hook.start(stopped(name)) for name in names]
    old: list[Path] = []
    while any(it.poll() is None for it in started):
        if recording.file.exists():
            old.append(recording.file.rename(recording.file.with_suffix(f".{len(old)}")))
    assert {(it.status, it.stderr) for it in map(finish, started)} == {(0, "")}
    files = [*old, recording.file] if recording.file.exists() else old
    lines = recording.read(*files)
    assert sorted(line["key"] for line in lines) == sorted(names)
    assert len({line["id"] for line in lines}) == CROWD
    assert {file.stat().st_mode & 0o7777 for file in files} == {0o600}


def test_what_a_full_disk_has_torn_costs_the_next_line_nothing(recording: Recording) -> None:
    place = str(recording.file.parent)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,mode=755", "tmpfs", place], check=True)
    try:
        recording.file.write_text("x" * 4000 + "\n")
        (said,) = recording.live("c1")
        assert f"io: could not add what key c1 used to {recording.file}" in said
        assert "ENOSPC" in said
        assert recording.hook.answer("list")["history"]["owed"] == [
            {"file": str(recording.file), "why": "No space left on device: ENOSPC", "lines": 1}
        ]
        text = recording.file.read_text()
        assert len(text) == 4096
        subprocess.run(["mount", "-o", "remount,size=64k", place], check=True)
        assert recording.live("c2") == []
        first, torn, whole = recording.file.read_text().splitlines()
    finally:
        subprocess.run(["umount", place], check=True)
    assert text == f"{first}\n{torn}"
    assert json.loads(whole)["key"] == "c2"
