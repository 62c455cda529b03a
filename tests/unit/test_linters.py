# SPDX-License-Identifier: Apache-2.0
"""The linters, as tests: what they say is never just advice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import provision

ROOT = Path(__file__).resolve().parents[2]
CACHE = provision.cache("mypy")
"""What mypy knows of files that are as they were: outside the checkout, since each clean one would begin with none."""

LINTERS = {
    "ruff check": ["ruff", "check", "--quiet", "--output-format=concise"],
    "ruff format": ["ruff", "format", "--check", "--quiet", "--diff"],
    "mypy": ["mypy", "--strict", "--no-error-summary", f"--cache-dir={CACHE}"],
}

SOURCES = [path.relative_to(ROOT) for top in (".ci", "hook", "packaging", "tests") for path in (ROOT / top).rglob("*")]
SOURCES = [Path("build.py"), *(path for path in SOURCES if path.suffix in (".c", ".go", ".py", ".sh"))]


def complaints(command: Sequence[str], directory: Path = ROOT) -> str:
    """What a linter says, empty if it is content."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=directory, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("linter", LINTERS)
def test_linter_is_content(linter: str) -> None:
    said = complaints(LINTERS[linter])
    assert not said, f"{linter}:\n{said}"


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_source_names_its_licence(path: Path) -> None:
    first, second, *_ = [*(ROOT / path).read_text(encoding="utf-8").splitlines(), "", ""]
    assert (second if first.startswith("#!") else first).endswith(" SPDX-License-Identifier: Apache-2.0")
