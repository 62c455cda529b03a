# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support import leftovers

NOTHING = leftovers.MachineState(frozenset(), frozenset(), frozenset(), frozenset())


def test_what_another_run_has_made_is_its_own_while_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(leftovers.MARK, "ours")
    run = tmp_path / "pytest-of-x/pytest-3"
    run.mkdir(parents=True)
    with subprocess.Popen(["sleep", "1000"], env={leftovers.MARK: "another's"}) as process:
        (run / ".lock").write_text(str(process.pid))
        mounts, made = frozenset([f"{run}/m/resctrl"]), frozenset([f"/x/storm-{process.pid}"])
        monkeypatch.setattr(leftovers.MachineState, "now", lambda: NOTHING._replace(mounts=mounts, cgroups=made))
        assert NOTHING.left() == []
        process.kill()
    monkeypatch.setattr(leftovers, "SECONDS", 0)
    assert NOTHING.left() == [f"mount: {run}/m/resctrl", f"cgroup: /x/storm-{process.pid}"]


def test_what_a_run_leaves_is_named_until_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(leftovers.MARK, mark := str(os.getpid()))
    monkeypatch.setattr(leftovers, "SECONDS", 0)
    before = leftovers.MachineState.now()
    with subprocess.Popen(["sleep", "1000"], env={leftovers.MARK: mark}) as process:
        assert f"process: {process.pid} sleep 1000" in before.left()
        process.kill()
    assert f"process: {process.pid} sleep 1000" not in before.left()
    if os.geteuid() == 0:
        with tempfile.NamedTemporaryFile(dir="/run") as file:
            assert f"file: {file.name}" in before.left()
        assert f"file: {file.name}" not in before.left()
