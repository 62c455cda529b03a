# SPDX-License-Identifier: Apache-2.0
"""What reconcile keeps of containers that were never hooked. The looks themselves are in tests/fuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hook.base import system
from hook.base.models import Options
from hook.base.resctrl import Resctrl
from hook.node import unhooked
from hook.stages.context import Context
from hook.state.records import UNHOOKED, Records, Unhooked
from hook.state.rundir import RunDir

ID = "5f3c" * 16
POD: dict[str, str | None] = {"namespace": "shop", "pod": "web-0", "name": "app"}
SEEN = Unhooked("2026-01-02T03:04:05Z", {ID: POD}, 1, "rules", frozenset({"a" * 64}))


@pytest.fixture
def context(tmp_path: Path) -> Context:
    options = Options(run_dir=str(tmp_path / "run"), resctrl_root=str(tmp_path))
    return Context(Resctrl(options.resctrl_root), RunDir(options.run_dir), options)


def test_the_saved_result_is_read_back(context: Context) -> None:
    unhooked._save(context, SEEN)
    with Records(context.run.path) as records:
        assert records.unhooked() == SEEN


def test_two_reconciles_that_save_at_once_do_no_harm(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    real = system.rename

    def other_first(*arguments: Any) -> None:  # noqa: ANN401  system.rename's
        real(*arguments)
        real(*arguments)

    monkeypatch.setattr(system, "rename", other_first)
    unhooked._save(context, SEEN)
    assert Path(context.run.path, UNHOOKED).stat().st_mode & 0o777 == 0o600


def test_names_of_containers_are_one_printable_line() -> None:
    hostile: dict[str, dict[str, str | None]] = {
        ID: {"namespace": "a\n", "pod": "\x1b[2J", "name": "\xe9"},
        "b" * 64: dict.fromkeys(POD, None),
    }
    names = Unhooked("", hostile, 0, "", frozenset()).names()
    assert names == ["bbbbbbbbbbbb", "a\\n/\\x1b[2J \\xe9 (5f3c5f3c5f3c)"]
