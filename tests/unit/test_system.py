# SPDX-License-Identifier: Apache-2.0
"""What the kernel is asked on the way in, where it is of no help."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hook import ending, rare, system
from tests.unit.simulated import fails
from tests.unit.stops import RealCalls

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("read_size", "limit", "patience", "expected"),
    [
        (10, 100, 2.0, b"0123456789"),
        (4, 100, 4.0, b"0123456789"),
        (3, 7, 5.0, b"0123456"),  # it is too long: its beginning
        (10, 100, 0.0, b""),
    ],
)
def test_of_a_stdin_that_does_not_end_the_beginning_is_read(
    monkeypatch: pytest.MonkeyPatch, read_size: int, limit: int, patience: float, expected: bytes
) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(system, "_own_stdin", lambda: (reading, True))
    monkeypatch.setattr(system, "READ_SIZE", read_size)
    # A second passes before each read.
    monkeypatch.setattr(system, "monotonic", itertools.count().__next__)
    os.write(writing, b"0123456789")
    assert system.read_stdin(limit, patience) == (expected, False)
    os.close(reading)
    os.close(writing)


def test_a_stdin_that_cannot_be_looked_at_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "posix", SimpleNamespace(fstat=fails(errno.EIO)))
    assert system._own_stdin() == (0, True)


@pytest.mark.parametrize(
    ("size", "reads"),
    [(0, [8]), (7, [8]), (8, [8, 16]), (9, [8, 16]), (24, [8, 16, 32]), (25, [8, 16, 32])],
)
def test_a_read_that_returns_less_than_was_asked_for_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, reads: list[int]
) -> None:
    """Also of a file of just that many bytes: the next read returns none."""
    calls, asked, content = RealCalls(), list[int](), "abcdefghijklmnopqrstuvwxyz"[:size]
    monkeypatch.setattr(system, "posix", calls)
    monkeypatch.setattr(system, "READ_SIZE", 8)

    def read(descriptor: int, most: int) -> bytes:
        asked.append(most)
        return os.read(descriptor, most)

    vars(calls)["read"] = read
    (tmp_path / "file").write_text(content)
    assert system.read_file(str(tmp_path / "file"), limit=25) == content
    assert asked == reads
    with pytest.raises(OSError, match="File too large"):
        system.read_file(str(tmp_path / "file"), limit=size - 1)


def test_a_file_of_records_is_read_until_nothing_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gives a page of it at a time, and less."""
    calls, parts = RealCalls(), [b"1 2 ", b"3 ", b"4 5 ", b"", b"6"]
    monkeypatch.setattr(system, "posix", calls)
    vars(calls)["read"] = lambda _descriptor, _most: parts.pop(0)
    (tmp_path / "children").touch()
    assert rare.read_records(str(tmp_path / "children"), 10) == "1 2 3 4 5 "
    parts[:] = [b"1 2 ", b"3 ", b"4 5 6", b""]
    with pytest.raises(OSError, match="File too large"):
        rare.read_records(str(tmp_path / "children"), 10)


def test_an_append_returns_the_end_of_its_text_behind_that_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which comes between the open and the write:
    of many hooks that fail at once, each counts once.
    """
    calls, directory = RealCalls(), os.open(tmp_path, os.O_RDONLY)
    with (tmp_path / "file").open("ab", buffering=0) as other:
        vars(calls)["at_call"] = lambda name, _path: other.write(b"..") if name == "write" else None
        monkeypatch.setattr(system, "posix", calls)
        assert rare.append_and_count("file", ".", directory) == (3, True)
    os.close(directory)


def test_lines_are_appended_to_a_regular_file_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="Not a regular file"):
        ending.append_lines(str(tmp_path / "fifo"), ["line"])


def test_the_age_of_a_link_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert rare.age(str(tmp_path / "link")) < 3600


@pytest.mark.parametrize("held", ["held", "free", "free in the instant in which the wait is over"])
def test_a_wait_for_a_lock_puts_the_handler_of_the_alarm_and_the_mask_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    def handler(*_: object) -> None:
        pass

    def ring(which: int, seconds: float, interval: float = 0.0) -> None:
        set_timer(which, seconds, interval)
        if not seconds:
            signal.raise_signal(signal.SIGALRM)

    former, set_timer = signal.signal(signal.SIGALRM, handler), signal.setitimer
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    if "instant" in held:
        monkeypatch.setattr("_signal.setitimer", ring)
    try:
        with (tmp_path / "lock").open("w") as holder, (tmp_path / "lock").open("w") as other:
            if held == "held":
                fcntl.flock(holder, fcntl.LOCK_EX)
            patience = 0.02 if held == "held" else 1e9
            assert rare.wait_for_flock(other.fileno(), system.monotonic() + patience) is (
                held != "held"
            )
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert signal.getsignal(signal.SIGALRM) is handler
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {*mask, signal.SIGALRM}
    finally:
        signal.signal(signal.SIGALRM, former)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_syslog_has_the_local_time_of_the_machine_whatever_tz_says() -> None:
    """The process is another one, since TZ is the whole process's."""
    code = "from hook import rare, system; rare.syslog_time(); print(system.time.tzname)"
    there, none = (
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        for env in ({"TZ": "XXX-14"}, {})
    )
    assert there.stdout == none.stdout
