# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.support import leftovers

NOTHING = leftovers.MachineState(frozenset(), frozenset(), frozenset(), frozenset())


@contextmanager
def a_file() -> Iterator[str]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with tempfile.NamedTemporaryFile(dir="/run") as file:
        yield f"file: {file.name}"


@contextmanager
def a_process() -> Iterator[str]:
    environment = {leftovers.MARK: os.environ[leftovers.MARK]}
    with subprocess.Popen(["sleep", "1000"], env=environment) as process:
        yield f"process: {process.pid} sleep 1000"
        process.kill()


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


def test_a_cgroup_that_is_removed_while_it_is_looked_at_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "another/c6"
    below.mkdir(parents=True)
    for cgroup in (below.parent, below):
        (cgroup / "cgroup.procs").touch()
    read = Path.read_text
    state = NOTHING._replace(cgroups=frozenset([str(below.parent)]))
    monkeypatch.setattr(leftovers.MachineState, "now", lambda: state if below.exists() else NOTHING)

    def remove_and_read(path: Path, **how: str) -> str:
        text = read(path, **how)
        if path.parent == below:
            shutil.rmtree(below.parent)
        return text

    monkeypatch.setattr(Path, "read_text", remove_and_read)
    assert NOTHING.left() == []


@pytest.mark.parametrize("made", [a_file, a_process])
def test_what_a_run_leaves_is_named_until_it_is_gone(
    made: Callable[[], AbstractContextManager[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(leftovers.MARK, str(os.getpid()))
    monkeypatch.setattr(leftovers, "SECONDS", 0)
    before = leftovers.MachineState.now()
    with made() as line:
        assert line in before.left()
    assert line not in before.left()
