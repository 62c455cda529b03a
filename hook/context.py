# SPDX-License-Identifier: Apache-2.0
"""What each act on a key needs: resctrl, the run directory with its views, and the options."""

from __future__ import annotations

from hook.view import View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from hook.models import Options
    from hook.resctrl import Resctrl
    from hook.store import RunDir


class Context:
    """The surroundings of a stage: resctrl, the run directory, the options."""

    def __init__(self, kernel: Resctrl, run: RunDir, options: Options, *, longest_linger: int | None = None) -> None:
        self.resctrl = kernel
        self.run = run
        self.view = View(run, kernel.root)
        self.options = options
        # A limit on the linger time in each key's record, in seconds; None for no limit.
        self.longest_linger = longest_linger
        # The number of RMIDs given back.
        self.freed = 0
        # By key, the CPU seconds that tasks had used before they were moved in; Tally saves them.
        self.late_cpu: dict[str, float] = {}
        # The seconds that are in the records of keys, and not in reconcile.json yet.
        self.late_total = 0.0
        # By thread (its number and start time), what the thread had used when it was moved.
        self.late_threads: dict[tuple[int, int], float] = {}
        # When the last complete reconcile looked, and of which containers it left threads outside.
        self.looked_at = 0.0
        self.left_outside: Collection[str] = ()
