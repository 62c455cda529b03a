# SPDX-License-Identifier: Apache-2.0
"""Runs a command for people: its exit status is 0, or 2 with a line on stderr for whatever it raises."""

from __future__ import annotations

from hook.base.errors import HookError
from hook.base.explain import refused, unforeseen
from hook.stages import failures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Usage(Exception):
    """The command line is wrong; the text is for the user."""


def run(command: Callable[[], int | None]) -> int:
    """Run a command; returns the exit status."""
    try:
        return command() or 0
    except BrokenPipeError:  # the reader ended, for example `head`
        return 0
    except KeyboardInterrupt:
        return complain("interrupted")
    except (HookError, Usage) as error:
        return complain(str(error))
    except OSError as error:
        return complain(str(refused("cannot read or write a file", error)))
    except Exception as error:  # noqa: BLE001  a defect is one line, too, and no answer
        return complain(str(unforeseen(error)))


def complain(problem: str) -> int:
    """Print why a command failed; returns its exit status."""
    failures.say(problem, to_syslog=False)
    return 2
