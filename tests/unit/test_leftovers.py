# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import leftovers
from tests.unit.simulated import fails


@contextmanager
def sleeper(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has this mark in its environment, once that can be read: a moment after exec."""
    with subprocess.Popen(["sleep", "1000"], env={leftovers.MARK: mark}) as process:
        try:
            while not Path(f"/proc/{process.pid}/environ").read_bytes():
                pass
            yield process
        finally:
            process.kill()


def test_what_another_run_has_made_is_its_own_while_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(leftovers.MARK, "ours")
    run = tmp_path / "pytest-of-x/pytest-3"
    run.mkdir(parents=True)
    with sleeper("another's") as process:
        (run / ".lock").write_text(str(process.pid))
        made = [f"cgroup: /x/storm-{process.pid}", f"mount: {run}/m/resctrl"]
        monkeypatch.setattr(leftovers, "look", lambda: set(made))
        assert leftovers.find_left(set()) == []
        with monkeypatch.context() as patch:
            patch.setattr(leftovers, "_is_ours", fails(errno.EACCES))  # another user's, and we are not root
            assert leftovers.find_left(set()) == []
    monkeypatch.setattr(leftovers, "SECONDS", 0)
    assert leftovers.find_left(set()) == made


def test_what_a_run_leaves_is_named_until_it_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(leftovers.MARK, mark := str(os.getpid()))
    monkeypatch.setattr(leftovers, "SECONDS", 0)
    before = leftovers.look()
    monkeypatch.setattr(leftovers, "PLACES", (str(tmp_path),))
    with sleeper(mark) as process, tempfile.NamedTemporaryFile(dir=tmp_path) as file:
        assert {f"process: {process.pid} sleep 1000", f"file: {file.name}"} <= {*leftovers.find_left(before)}
    assert not {f"process: {process.pid} sleep 1000", f"file: {file.name}"} & {*leftovers.find_left(before)}
