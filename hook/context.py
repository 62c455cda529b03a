# SPDX-License-Identifier: Apache-2.0
"""What a call of the hook carries along: whom it is about, and the surroundings of each act on a key."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.identity import Container
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


class Call:
    """One call of the hook; immutable."""

    def __init__(
        self,
        stage: str,
        given: tuple[Options, list[str]],
        name: str,
        bundle: str | None,
        container: Container | None = None,
    ) -> None:
        self.stage = stage
        # The options, and a complaint about each bad word of the command line.
        self.options, self.complaints = given
        # The container's ID or, if the state has none, a stable name for its record.
        self.name = name
        # None if the state has none.
        self.bundle = bundle
        # None at poststop, and if the state could not be read.
        self.container = container
