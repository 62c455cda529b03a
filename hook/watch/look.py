# SPDX-License-Identifier: Apache-2.0
"""Looks at all containers for processes without an event: when watch starts, and after events were lost.

It takes as long as the node is large, so a child process does it, while the parent goes on listening.
"""

from __future__ import annotations

import os
import signal

from hook.base import system
from hook.base.errors import HookError
from hook.reconcile import move_in, plan, survey
from hook.reconcile.tally import Tally

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from hook.stages.context import Context
    from hook.watch.log import Log

_PAUSE = 10.0  # seconds from the end of one look to the begin of the next
_DEADLINE = 50.0  # seconds, as for the unit of reconcile


class Looks:
    """Looks at the node, one at a time, and not too often. `release`: gives up what the child must not keep."""

    def __init__(self, context: Context, log: Log, release: Callable[[], object]) -> None:
        self._context = context
        self._log = log
        self._release = release
        self._is_wanted = False
        self._child = 0
        self._began = 0.0
        self._ended = -_PAUSE

    def ask(self) -> None:
        """Have a look soon, after one that is going on."""
        self._is_wanted = True

    def tick(self) -> None:
        """Begin a look that is due; notice the end of one, or end one that takes too long."""
        now = system.monotonic()
        if self._child:
            if now - self._began > _DEADLINE:
                self.stop()
                self._began = now
                self._log.say(f"a look at all containers took over {_DEADLINE:.0f} seconds: left to reconcile")
            if os.waitpid(self._child, os.WNOHANG)[0]:
                self._child, self._ended = 0, now
        elif self._is_wanted and now - self._ended >= _PAUSE:
            self._is_wanted, self._began = False, now
            child = os.fork()
            if child == 0:
                self._run()
            self._child = child

    def stop(self) -> None:
        """End a look that is going on."""
        if self._child:
            os.kill(self._child, signal.SIGKILL)

    def _run(self) -> NoReturn:
        """Look, as the child."""
        try:
            self._release()
            number = adopt_all(self._context, self._log)
            if number:
                self._log.say(f"moved in what events did not tell of, of {number} containers")
        except BaseException as error:  # noqa: BLE001  the parent listens on
            self._log.say(f"cannot look at all containers: {error}")
        finally:
            system.leave(0)


def adopt_all(context: Context, log: Log) -> int:
    """Do those actions of reconcile that move tasks in, and no others. Returns how many changed something."""
    number = 0
    seen = survey.survey_node(context)
    for action in plan.plan(seen, context.options.snapshot_ttl):
        if action.verb == "adopt":
            try:
                number += bool(move_in.adopt(context, action, seen))
            except (HookError, OSError) as error:
                log.say(f"{action}: {error}")
    Tally(context.run, context.late_cpu).save()
    return number
