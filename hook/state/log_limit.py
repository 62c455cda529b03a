# SPDX-License-Identifier: Apache-2.0
"""How many failures of one reason there were in a minute, so that a log gets the first ones and then a count.

    logged-<reason>-<minute>      as many bytes as there were failures (minutes on CLOCK_BOOTTIME)

Imported when something failed, and by reconcile. No lock: an append has one place, which is the failure's number.
"""

from __future__ import annotations

from hook.base import system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.state.rundir import RunDir

MOST = 10
"""Lines a minute, for each reason."""
_PREFIX = "logged-"
_MINUTE = 60.0


def count(run: RunDir, reason: str) -> tuple[bool, list[str]]:
    """Count a failure. Returns whether to log it, and a line for each count of an earlier minute.

    True where it cannot be counted, and where another process took the count away meanwhile: no failure is lost.
    """
    try:
        number, is_kept = system.append_numbered(f"{_PREFIX}{reason}-{_this_minute()}", ".", run.descriptor)
    except OSError:
        return True, []
    return number <= MOST or not is_kept, collect(run) if number == 1 else []


def collect(run: RunDir) -> list[str]:
    """Remove the counts of earlier minutes. Returns a line for each with more failures than were logged."""
    lines = []
    try:
        for name in system.list_directory(".", run.descriptor):
            reason, _, minute = name[len(_PREFIX) :].rpartition("-")
            if name.startswith(_PREFIX) and minute != str(_this_minute()):
                more = _take(run, name) - MOST
                if more > 0:
                    lines.append(f"{reason}: and {more} more failures within a minute; see resctrl-mon-hook list")
    except OSError:
        pass
    return lines


def _take(run: RunDir, name: str) -> int:
    """Remove a count and return it; 0 if another process has."""
    try:
        return system.remove_and_measure(name, run.descriptor)
    except OSError:
        return 0


def _this_minute() -> int:
    return int(system.boottime() / _MINUTE)
