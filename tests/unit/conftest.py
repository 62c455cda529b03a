# SPDX-License-Identifier: Apache-2.0
"""The .pyz as the tests of how it is made have it; and no configuration of the machine that they run on."""

from __future__ import annotations

import errno
import os
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from hook.base import system
from hook.node.door import Tree
from pyz import archive
from tests.unit.files import FOUND, ROOT

if TYPE_CHECKING:
    from pathlib import Path

OF_THE_MACHINE = re.compile("/(etc|run|usr/share/containers|var/lib|var/log)(/|$)")


@pytest.fixture(autouse=True)
def _without_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runtimes may be installed here, and run containers: to the functions that are tested there are none."""
    open_, stat, list_directory, lexists = Tree._open, Tree.stat, system.list_directory, os.path.lexists

    def is_hidden(tree: Tree, path: str) -> bool:
        return not tree.root and OF_THE_MACHINE.match(os.path.join(tree.cwd, path)) is not None

    def open_other(tree: Tree, path: str, kind: int) -> int:
        if is_hidden(tree, path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return open_(tree, path, kind)

    def list_other(path: str, dir_fd: int | None = None) -> list[str]:
        if dir_fd is None and is_hidden(Tree(), path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return list_directory(path, dir_fd)

    def lexists_other(path: str | os.PathLike[str]) -> bool:
        return not is_hidden(Tree(), os.fspath(path)) and lexists(path)

    monkeypatch.setattr(os.path, "lexists", lexists_other)
    monkeypatch.setattr(Tree, "_open", open_other)
    monkeypatch.setattr(Tree, "stat", lambda tree, path: None if is_hidden(tree, path) else stat(tree, path))
    monkeypatch.setattr(system, "list_directory", list_other)


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
