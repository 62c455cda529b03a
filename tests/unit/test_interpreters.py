# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import interpreters


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
