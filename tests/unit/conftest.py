# SPDX-License-Identifier: Apache-2.0
"""The .pyz as the tests of how it is made have it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from pyz import archive
from tests.unit.files import FOUND, ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, which stays as it is between two builds. Its path has a blank in it."""
    root = tmp_path_factory.mktemp("sources") / "a copy"
    for name in ("hook", "oci-hooks", "packaging"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "build.py", root)
    return root


@pytest.fixture(scope="session")
def pyz(source: Path) -> Path:
    """The .pyz of these, for all interpreters."""
    return archive.build(root=source, python=str(FOUND[-1].path), interpreters=[str(it.path) for it in FOUND])
