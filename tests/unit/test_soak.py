# SPDX-License-Identifier: Apache-2.0
"""The soak of tests/faults in little, and that it sees what is wrong."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from hook.store import LockedKey
from tests.faults import soak
from tests.faults.campaign import Campaign

PODS = 64


@pytest.mark.parametrize("is_broken", [False, True])
def test_what_lives_has_its_group_and_its_files_and_nothing_else_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    if is_broken:
        monkeypatch.setattr(LockedKey, "clear", lambda locked: setattr(locked, "state", None))
    with closing(Campaign(tmp_path, most=PODS)) as campaign:
        soak.run(campaign)
    assert [row.cases for row in campaign.rows] == [PODS]
    assert bool(campaign.failures) is is_broken
