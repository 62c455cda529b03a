# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support import leftovers


def test_what_another_run_has_made_is_its_own_while_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(leftovers.MARK, "ours")
    run = tmp_path / "pytest-of-x/pytest-3"
    run.mkdir(parents=True)
    with subprocess.Popen(["sleep", "1000"], env={leftovers.MARK: "another's"}) as process:
        (run / ".lock").write_text(str(process.pid))
        made = [f"cgroup: /x/storm-{process.pid}", f"mount: {run}/m/resctrl"]
        monkeypatch.setattr(leftovers, "look", lambda: set(made))
        assert leftovers.find_left(set()) == []
        process.kill()
    monkeypatch.setattr(leftovers, "SECONDS", 0)
    assert leftovers.find_left(set()) == made


def test_what_a_run_leaves_is_named_until_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(leftovers.MARK, mark := str(os.getpid()))
    monkeypatch.setattr(leftovers, "SECONDS", 0)
    before = leftovers.look()
    with subprocess.Popen(["sleep", "1000"], env={leftovers.MARK: mark}) as process:
        assert f"process: {process.pid} sleep 1000" in leftovers.find_left(before)
        process.kill()
    assert f"process: {process.pid} sleep 1000" not in leftovers.find_left(before)
    if os.geteuid() == 0:
        with tempfile.NamedTemporaryFile(dir="/run") as file:
            assert f"file: {file.name}" in leftovers.find_left(before)
        assert f"file: {file.name}" not in leftovers.find_left(before)
