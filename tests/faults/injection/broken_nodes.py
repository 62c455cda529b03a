# SPDX-License-Identifier: Apache-2.0
"""Full, read-only, out of descriptors or memory, torn, replaced, hidden: what a node can be like when a hook comes.

Here nothing is injected: file systems, limits and files really are like that. What has been broken is mended then (room
is made, a link taken away), one reconcile comes, and all is as if nothing had happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.injection import damaged_files, full_disk, hostile_annotations, odd_surroundings, rlimits

if TYPE_CHECKING:
    from tests.faults.campaign import Campaign


def run(campaign: Campaign) -> None:
    for subject in (full_disk, rlimits, damaged_files, odd_surroundings, hostile_annotations):
        subject.run(campaign)
