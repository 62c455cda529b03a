# SPDX-License-Identifier: Apache-2.0
"""Hostile input to whole hooks (hostile.py), which hypothesis makes.

No crash, no hang, no change outside of our directories.
"""

from __future__ import annotations

import time
import traceback

from hypothesis import HealthCheck, given, seed, settings

from tests.faults import hostile
from tests.faults.campaign import Campaign

INPUTS = 100_000


def run(campaign: Campaign) -> None:
    begin, most = time.monotonic(), campaign.most or INPUTS
    if not campaign.is_chosen("whole hooks"):
        return
    problems = {}

    @seed(campaign.seed)
    @settings(max_examples=most, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(hostile.inputs())
    def check(what: hostile.HostileInput) -> None:
        hostile.check(what)

    try:
        check()
    except Exception:  # noqa: BLE001  whatever it is, this input led to it
        problems["whole hooks"] = traceback.format_exc()
    campaign.tally("inputs to whole hooks", most, problems, begin)
