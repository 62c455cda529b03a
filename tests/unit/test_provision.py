# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tests import provision


def test_the_requirements_are_the_dependency_group() -> None:
    tomllib = pytest.importorskip("tomllib", reason="came with Python 3.11")
    text = (provision.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pins = provision.requirements(text)
    assert pins == tomllib.loads(text)["dependency-groups"]["dev"]
    assert all("==" in pin for pin in pins)
