# SPDX-License-Identifier: Apache-2.0
"""What reconcile did or plans, as text and as objects for JSON; and who follows a run."""

from __future__ import annotations

from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from hook.reconcile.plan import Action


@dataclass(frozen=True)
class Outcome:
    """The outcome of an action. `problem`: why it failed; `remark`: another problem found meanwhile.

    `reason`: the name of the problem (reasons.Reason). `is_busy`: a hook works at this key, so that the next run, or
    that hook, does the action: no failure. `outside`: how many threads of the container it left outside its group.
    `is_mended`: a later look in the same run found none outside: no failure in the end.
    """

    action: Action
    problem: str | None = None
    remark: str | None = None
    reason: str | None = None
    is_busy: bool = False
    outside: int = 0
    is_mended: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether the action is left undone."""
        return self.problem is not None and not (self.is_busy or self.is_mended)


@dataclass(frozen=True)
class Result:
    """The actions that were done, or are planned. `left`: a line for each problem that reconcile does not change.

    `ended`: why the run did not get to its end (a signal, its time is over). `undone`: how many of the actions that it
    had planned it left undone then.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    undone: int = 0
    ended: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether no action is left undone: none failed, unless a later one did as much for the same container."""
        return self.ended is None and not any(it.has_failed for it in self._list_last())

    def count_outside(self) -> dict[str, int]:
        """How many threads of each container are still outside its group."""
        return {it.action.container: it.outside for it in self._list_last() if it.outside and it.has_failed}

    def _list_last(self) -> Collection[Outcome]:
        """The last action of each container, group or key."""
        return {it.action.container or it.action.path or it.action.key: it for it in self.outcomes}.values()

    def __add__(self, other: Result) -> Result:
        outcomes, left = [*self.outcomes, *other.outcomes], [*self.left, *other.left]
        return Result(outcomes, left)


class Follower:
    """Follows a run. This one reports nothing."""

    def begin(self, action: Action, number: int, total: int) -> None:
        """An action begins, the `number`th of `total` in this pass."""

    def end(self, outcome: Outcome | None) -> None:
        """An action was done, or has failed. None: it was no longer needed."""


def format_outcome(it: Outcome) -> list[str]:
    """A line for an action, its problem and its remark."""
    problem = [f"  failed: {it.problem}"] if it.problem is not None else []
    return [str(it.action), *problem, *([f"  {it.remark}"] if it.remark is not None else [])]


def format_left(line: str) -> str:
    """A line for something that stays as it is."""
    return f"left: {line}"


def to_json(result: Result, *, dry_run: bool) -> dict[str, Any]:
    """The same as an object for JSON."""
    actions = [_outcome_to_json(it) for it in result.outcomes]
    return {
        "dry_run": dry_run,
        "actions": actions,
        "left": result.left,
        "ended": result.ended,
        "undone": result.undone,
    }


def _outcome_to_json(it: Outcome) -> dict[str, Any]:
    action = it.action
    about = {"key": action.key, "container": action.container, "path": action.path}
    names = {"namespace": action.namespace, "pod": action.pod, "name": action.name}
    return {
        "action": action.verb,
        **{name: value or None for name, value in about.items()},
        **names,
        "why": action.why,
        "problem": it.problem,
        "remark": it.remark,
    }
