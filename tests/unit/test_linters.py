# SPDX-License-Identifier: Apache-2.0
"""The linters, as tests: what they report is never just advice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import provision

ROOT = Path(__file__).resolve().parents[2]
CACHE = provision.cache("mypy")
"""mypy's cache lies outside the checkout: a clean checkout would begin with none."""

LINTERS = {
    "ruff check": ["ruff", "check", "--quiet", "--output-format=concise"],
    "ruff format": ["ruff", "format", "--check", "--quiet", "--diff"],
    "mypy": ["mypy", "--strict", "--no-error-summary", f"--cache-dir={CACHE}"],
}


@pytest.mark.parametrize("linter", LINTERS)
def test_linter_is_content(linter: str) -> None:
    command = [sys.executable, "-m", *LINTERS[linter]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{linter}:\n{done.stdout}{done.stderr}"


def test_each_source_names_its_licence() -> None:
    sources = [path for top in (".ci", "hook", "packaging", "tests") for path in (ROOT / top).rglob("*")]
    without = []
    for path in (ROOT / "build.py", *(path for path in sources if path.suffix in (".c", ".go", ".py", ".sh"))):
        first, second, *_ = [*path.read_text(encoding="utf-8").splitlines(), "", ""]
        if not (second if first.startswith("#!") else first).endswith(" SPDX-License-Identifier: Apache-2.0"):
            without.append(str(path))
    assert without == []
