# SPDX-License-Identifier: Apache-2.0
"""Rotation of the history, on real files: which files there are then,
and which lines, also after a kill.
"""

from __future__ import annotations

import gzip
import os
import signal
import sys
from pathlib import Path

import pytest

from hook.node import files
from hook.reconcile import rotate as rotation
from hook.reconcile.rotate import MOST_FILES, rotate

NAMES = [
    "history.jsonl",
    "history.jsonl.1",
    *(f"history.jsonl.{number}.gz" for number in range(2, MOST_FILES + 1)),
]
LINES = 10


class History:
    def __init__(self, directory: Path) -> None:
        self.file = directory / NAMES[0]
        self.written = 0

    def fill(self) -> None:
        """Write so many lines that the file is large."""
        with self.file.open("a") as file:
            for number in range(self.written, self.written + LINES):
                file.write(f"line {number}\n")
        self.written += LINES

    def rotate(self) -> bool:
        return rotate(str(self.file))

    def names(self) -> list[str]:
        names = (path.name for path in self.file.parent.iterdir())
        return sorted(names, key=lambda name: NAMES.index(name) if name in NAMES else -1)

    def read(self, name: str) -> list[int]:
        content = self.file.with_name(name).read_bytes()
        text = gzip.decompress(content) if name.endswith(".gz") else content
        return [int(line.split()[1]) for line in text.splitlines()]

    def lines(self) -> list[int]:
        """The lines of all files that `history` reads."""
        return sorted(
            line for name in self.names() if not name.startswith(".") for line in self.read(name)
        )


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.setattr(rotation, "LARGEST", 60)
    return History(tmp_path)


def test_a_large_file_becomes_the_first_of_twelve_and_the_last_one_goes(history: History) -> None:
    assert not history.rotate(), "there is none"
    for number in range(MOST_FILES + 2):
        history.fill()
        assert history.rotate()
        assert history.names() == NAMES[1 : 2 + number]
    assert history.lines() == [*range(2 * LINES, history.written)]
    assert [history.read(name)[0] for name in (NAMES[1], NAMES[2], NAMES[12])] == [130, 120, 20]
    assert {(history.file.parent / name).stat().st_mode & 0o777 for name in NAMES[2:]} == {0o600}
    history.file.write_text("line 1\n")
    assert not history.rotate(), "it is small"


def test_no_kill_loses_a_line_and_after_the_next_run_each_is_there_once(
    history: History, tmp_path: Path
) -> None:
    for killed_at in range(1000):
        history.file = tmp_path / str(killed_at) / NAMES[0]
        history.file.parent.mkdir()
        history.written = 0
        for _ in range(3):
            history.fill()
            history.rotate()
        history.fill()
        status = kill(history, killed_at)
        expected = [*range(history.written)]
        assert sorted({*history.lines()}) == expected
        history.fill()
        history.rotate()
        assert history.lines() == [*range(history.written)]
        assert [name for name in history.names() if name not in NAMES] == []
        if status == 0:
            break
    assert killed_at > 10


def kill(history: History, at: int) -> int:
    """Rotate in a process that is killed before its call of this number that opens,
    renames or removes a file.
    """
    child = os.fork()
    if not child:
        calls = iter(range(at + 1))

        def count(event: str, _: object) -> None:
            if event in ("open", "os.rename", "os.remove") and next(calls, at) == at:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        history.rotate()
        os._exit(0)
    return os.waitpid(child, 0)[1]


def test_a_file_that_a_hook_has_open_is_compressed_when_it_is_closed(history: History) -> None:
    """So its line is lost in no file that is gone."""
    history.fill()
    with history.file.open("a") as appender:
        for _ in range(2):
            history.rotate()
            history.fill()
        assert history.names() == ["history.jsonl.2", *NAMES[:2]]
        appender.write("line 30\n")
    history.rotate()
    assert history.names() == NAMES[1:4]
    assert history.lines() == [*range(31)]


@pytest.mark.parametrize("content", [gzip.compress(b"line 7\n"), b"no gzip", b""])
def test_a_foreign_file_with_the_name_of_a_compressed_one_stays_and_is_said(
    history: History, content: bytes
) -> None:
    foreign = history.file.with_name("history.jsonl.2.gz")
    foreign.write_bytes(content)
    history.file.with_name("history.jsonl.2").write_text("line 1\n")
    with pytest.raises(
        files.Unreadable, match=r"history\.jsonl\.2\.gz: not made of the file without \.gz"
    ):
        history.rotate()
    assert foreign.read_bytes() == content


def test_a_directory_that_cannot_be_written_is_said_while_the_file_is_small(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write wherever a mount does not forbid it.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(files.Unreadable, match="not writable here"):
        history.rotate()


def test_what_is_no_regular_file_is_left_alone(history: History, tmp_path: Path) -> None:
    history.file.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(b"x" * 100)
    assert not history.rotate()
    assert history.file.is_symlink()
