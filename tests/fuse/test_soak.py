# SPDX-License-Identifier: Apache-2.0
"""The soak of tests/faults in little, and whether it would see what is wrong."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.faults import soak
from tests.faults.campaign import Campaign

PODS = 60


@pytest.mark.usefixtures("resctrl")  # or is skipped where it cannot be had
def test_what_lives_has_its_group_and_its_files_and_nothing_else_has(tmp_path: Path) -> None:
    with closing(Campaign(tmp_path, most=PODS)) as campaign:
        soak.run(campaign)
    assert not campaign.failures
    assert [row.cases for row in campaign.rows] == [PODS]
