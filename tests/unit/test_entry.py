# SPDX-License-Identifier: Apache-2.0
"""What stands between whatever goes wrong and the container."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hook.base import procfs, system
from hook.base.models import Failure
from hook.stages import entry, report
from hook.state import store


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    former = os.umask(0o022)
    yield
    os.umask(former)


def arrives(state: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """This is on stdin, and whole."""
    monkeypatch.setattr(system, "read_stdin", lambda *_: (json.dumps(state).encode(), True))


def test_no_defect_fails_a_container_not_even_one_in_what_reports_defects(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def run_stage(_verb: object, _arguments: list[str]) -> int:
        raise MemoryError("none left")

    monkeypatch.setattr(entry, "run_stage", run_stage)
    monkeypatch.setattr(report, "say", lambda text: os.write(2, text.encode()))
    assert entry.dispatch(["createRuntime", "--strict"]) == 0
    assert "none left" in capfd.readouterr().err


def test_a_defect_is_on_record_and_fails_no_container(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def act(*_arguments: object) -> bool:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(entry, "_act", act)
    arrives({"ociVersion": "1.0.2", "id": "c1", "status": "created", "pid": 7, "bundle": "/b"}, monkeypatch)
    assert entry.dispatch(["createRuntime", "--strict", f"--run-dir={tmp_path}/run", f"--resctrl-root={tmp_path}"]) == 0
    assert "unforeseen ZeroDivisionError: oh" in capfd.readouterr().err
    (record,) = (tmp_path / "run/unmonitored").iterdir()
    assert "unforeseen ZeroDivisionError: oh" in record.read_text()


def test_an_invalid_name_is_quoted_in_part(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    state = {"ociVersion": "1.0.2", "id": "-" * 200, "status": "created", "pid": 7, "bundle": "/nowhere"}
    arrives(state, monkeypatch)
    assert entry.dispatch(["createRuntime", f"--run-dir={tmp_path}/run"]) == 0
    assert f"{'-' * 80!r} is not a container ID; hint: a runtime that does not follow" in capfd.readouterr().err


@pytest.mark.parametrize("status", ["stopped", 7])
def test_the_verb_decides_the_stage_whatever_the_state_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: object
) -> None:
    arrives({"id": "c1", "status": status}, monkeypatch)
    assert entry.dispatch(["createRuntime", f"--run-dir={tmp_path}/run"]) == 0
    assert json.loads((tmp_path / "run/unmonitored/c1.json").read_text())["stage"] == "createRuntime"


def test_failure_to_open_the_run_directory_is_recorded_with_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without it reconcile would never try again."""
    attempts = [OSError(errno.EMFILE, "Too many open files")]
    real = store.RunDir

    def open_later(path: str) -> store.RunDir:
        if attempts:
            raise attempts.pop()
        return real(path)

    monkeypatch.setattr(entry, "RunDir", open_later)
    arrives({"ociVersion": "1.0.2", "id": "c1", "status": "created", "pid": os.getpid(), "bundle": "/b"}, monkeypatch)
    assert entry.dispatch(["createRuntime", f"--run-dir={tmp_path}/run", f"--resctrl-root={tmp_path}"]) == 0
    failure = real(f"{tmp_path}/run").glance(Failure, "c1")
    assert failure is not None
    assert (failure.reason, failure.pid, failure.starttime) == ("io", os.getpid(), procfs.starttime(os.getpid()))
