# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.support import leftovers


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
