# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that run in the guest: the real resctrl, without groups,
and what works on it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Callable

import pytest

from tests.kernel.inside import REAL_ROOT, remove_groups
from tests.support.containers import Lab
from tests.support.hook import Hook, task

Set = Callable[[str, object], None]
Umount = Callable[[], None]
PARAMETERS = Path("/sys/module/fakerdt/parameters")


@pytest.fixture
def root() -> Iterator[Path]:
    assert REAL_ROOT is not None, "this is a test for the guest: tests/kernel/test_kernel_guests.py"
    remove_groups(REAL_ROOT)
    yield REAL_ROOT
    remove_groups(REAL_ROOT)


@pytest.fixture
def hook(root: Path, tmp_path: Path) -> Hook:
    return Hook(root, tmp_path / "run")


@pytest.fixture
def init() -> Iterator[subprocess.Popen[bytes]]:
    with task() as process:
        yield process


@pytest.fixture
def lab(hook: Hook) -> Iterator[Lab]:
    _, _, *options = hook.command("hook")
    with closing(Lab(options)) as lab:
        yield lab


@pytest.fixture
def fake(root: Path) -> Iterator[Set]:  # noqa: ARG001  set back before the groups are removed
    """Sets a parameter of the faked RDT for the length of a test."""
    before = {
        path: path.read_text() for path in PARAMETERS.iterdir() if path.stat().st_mode & 0o200
    }

    def change(name: str, value: object) -> None:
        (PARAMETERS / name).write_text(str(value))

    yield change
    for path, text in before.items():
        path.write_text(text)


@pytest.fixture
def umount(root: Path) -> Iterator[Umount]:
    """Unmounts resctrl; it is mounted again at the end."""

    def away() -> None:
        subprocess.run(["umount", root], check=True)

    yield away
    mount(root)


def mount(root: Path) -> None:
    if not (root / "mon_groups").exists():
        subprocess.run(["mount", "-t", "resctrl", "resctrl", root], check=True)
