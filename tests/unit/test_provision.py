# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tests import provision


@pytest.mark.parametrize("group", ["dev", "faults"])
def test_the_requirements_are_the_dependency_group(group: str) -> None:
    tomllib = pytest.importorskip("tomllib", reason="came with Python 3.11")
    text = (provision.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pins = provision.requirements(text, group)
    assert pins == tomllib.loads(text)["dependency-groups"][group]
    assert all("==" in pin for pin in pins)
