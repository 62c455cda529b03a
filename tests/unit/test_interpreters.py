# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import interpreters
from tests.support.interpreters import Interpreter


def pretend(directory: Path, name: str, answer: str) -> Path:
    """A program that gives an interpreter's answer to the probe."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A home and a PATH of our own, in which nothing of the machine's shows up."""
    environment = {"HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "bin")}
    everywhere = interpreters.directories
    monkeypatch.setattr(
        interpreters,
        "directories",
        lambda given: (path for path in everywhere(given) if path.is_relative_to(tmp_path)),
    )
    return environment


def test_a_venv_in_the_path_does_not_hide_its_base(tmp_path: Path, environment: dict[str, str]) -> None:
    name = interpreters.python_name(sys.version_info[:2])
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "v"], check=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / name).symlink_to(Path(sys.base_prefix, "bin", name))
    found = interpreters.find({**environment, "PATH": f"{tmp_path}/v/bin:{tmp_path}/bin"})
    assert [interpreter.path for interpreter in found] == [tmp_path / "bin" / name]


def test_one_of_each_minor_sorted_by_version(tmp_path: Path, environment: dict[str, str]) -> None:
    newer = pretend(tmp_path / "bin", "python3.10", "3 10 13 /usr")
    older = pretend(tmp_path / "home/.pyenv/versions/3.9.18/bin", "python3.9", "3 9 18 /pyenv")
    pretend(tmp_path / "home/.pyenv/versions/3.10.1/bin", "python3.10", "3 10 1 /pyenv")
    pretend(tmp_path / "bin", "python3.12", "no answer")
    assert interpreters.find(environment) == [
        Interpreter((3, 9, 18), older),
        Interpreter((3, 10, 13), newer),
    ]
