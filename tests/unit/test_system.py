# SPDX-License-Identifier: Apache-2.0
"""What the kernel is asked on the way in, where it is of no help."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hook import system
from tests.unit.simulated import fails


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end to write to of a pipe that stands for stdin."""
    reading, writing = os.pipe()
    monkeypatch.setattr(system, "_own_stdin", lambda: (reading, True))
    yield writing
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("reads", [1, 3])
def test_a_stdin_that_does_not_end_is_given_up_with_what_there_is(
    stdin: int, monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    text = b"half a state"
    monkeypatch.setattr(system, "READ_SIZE", len(text) // reads)
    monkeypatch.setattr(system, "monotonic", itertools.count().__next__)  # a second passes before each read
    os.write(stdin, text)
    assert system.read_stdin(100, reads + 1.0) == (text, False)


def test_what_is_kept_of_a_stdin_that_is_too_long_is_its_beginning(stdin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "READ_SIZE", 3)
    monkeypatch.setattr(system, "monotonic", itertools.count().__next__)
    os.write(stdin, b"0123456789")
    assert system.read_stdin(7, 5.0) == (b"0123456", False)


def test_read_stdin_with_zero_timeout_reads_nothing(stdin: int) -> None:
    os.write(stdin, b"half a state")
    assert system.read_stdin(100, 0.0) == (b"", False)


def test_a_stdin_that_cannot_be_looked_at_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "posix", SimpleNamespace(fstat=fails(errno.EIO)))
    assert system._own_stdin() == (0, True)


def test_standard_descriptors_that_are_missing_lead_to_nothing() -> None:
    system.ensure_standard_descriptors()  # all are there
    pid = os.fork()
    if pid == 0:
        try:
            os.close(0)
            os.close(2)
            system.ensure_standard_descriptors()
            os._exit(sum(os.path.samestat(os.fstat(number), os.stat("/dev/null")) for number in (0, 2)))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2


def test_the_age_of_a_link_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert system.age(str(tmp_path / "link")) < 3600


@pytest.mark.parametrize("is_held", [True, False])
def test_a_wait_for_a_lock_puts_the_handler_of_the_alarm_and_the_mask_back(tmp_path: Path, is_held: bool) -> None:
    def handler(*_: object) -> None:
        pass

    former = signal.signal(signal.SIGALRM, handler)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    try:
        with (tmp_path / "lock").open("w") as holder, (tmp_path / "lock").open("w") as other:
            if is_held:
                fcntl.flock(holder, fcntl.LOCK_EX)
            assert system.wait_for_flock(other.fileno(), system.monotonic() + 0.02) is not is_held
        assert signal.getsignal(signal.SIGALRM) is handler
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {*mask, signal.SIGALRM}
    finally:
        signal.signal(signal.SIGALRM, former)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
