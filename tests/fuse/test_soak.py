"""The soak of tests/faults, in little."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.faults import soak
from tests.faults.campaign import Campaign

if TYPE_CHECKING:
    from pathlib import Path


PODS = 100


@pytest.mark.usefixtures("resctrl")  # or is skipped where it cannot be had
def test_what_lives_has_its_group_and_its_files_and_nothing_else_has(tmp_path: Path) -> None:
    with closing(Campaign(tmp_path, most=PODS, only="model")) as campaign:
        soak.run(campaign)
    assert not campaign.failures
    assert [row.cases for row in campaign.rows] == [PODS]
