"""The soak of tests/faults, in little."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults import soak

if TYPE_CHECKING:
    from pathlib import Path

    from tests.resctrlfs import Mounted
    from tests.support.hook import Hook

PODS = 300
BATCH = 100


@pytest.mark.knobs(**soak.MACHINE)
def test_what_lives_has_its_group_and_its_files_and_nothing_else_has(
    hook: Hook, resctrl: Mounted, tmp_path: Path
) -> None:
    assert resctrl.root == hook.resctrl_root
    node = soak.soak(hook, tmp_path / "errors", PODS, BATCH, seed=1)
    assert len(node.sizes) == PODS // BATCH
    assert sum(worker.zygote.hooks for worker in node.workers) > 3 * PODS
