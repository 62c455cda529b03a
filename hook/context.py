# SPDX-License-Identifier: Apache-2.0
"""What each act on a key needs: resctrl, the run directory, and the options."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.models import Options
    from hook.resctrl import Resctrl
    from hook.store import RunDir


class Context:
    """The surroundings of a stage: resctrl, the run directory, the options."""

    def __init__(self, kernel: Resctrl, run: RunDir, options: Options) -> None:
        self.resctrl = kernel
        self.run = run
        self.options = options
        # The number of RMIDs given back.
        self.freed = 0
