# SPDX-License-Identifier: Apache-2.0
"""What reconcile keeps of containers that were never hooked. The looks themselves are in tests/fuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hook.base import system
from hook.base.node_models import Unhooked, UnhookedContainer
from hook.state.records import Records, name_unhooked
from hook.state.store import RunDir

ID = "5f3c" * 16
POD = UnhookedContainer(namespace="shop", pod="web-0", name="app")
SEEN = Unhooked(since="2026-01-02T03:04:05Z", containers={ID: POD}, unchecked=1, rules="rules", others=["a" * 64])


def test_two_reconciles_that_save_at_once_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = system.rename, []

    def other_first(*arguments: Any) -> None:  # noqa: ANN401  system.rename's
        calls.append(arguments)
        real(*arguments)
        if len(calls) == 1:
            real(*arguments)

    monkeypatch.setattr(system, "rename", other_first)
    RunDir(str(tmp_path / "run")).write(Unhooked, "unhooked", SEEN)
    with Records(str(tmp_path / "run")) as records:
        assert records.glance(Unhooked, "unhooked") == SEEN
    assert (tmp_path / "run" / "unhooked.json").stat().st_mode & 0o777 == 0o600


def test_names_of_containers_are_one_printable_line() -> None:
    hostile = {ID: UnhookedContainer(namespace="a\n", pod="\x1b[2J", name="\xe9"), "b" * 64: UnhookedContainer()}
    seen = Unhooked(since="", containers=hostile, unchecked=0, rules="", others=[])
    assert name_unhooked(seen) == ["bbbbbbbbbbbb", "a\\n/\\x1b[2J \\xe9 (5f3c5f3c5f3c)"]
