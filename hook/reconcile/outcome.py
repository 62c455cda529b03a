# SPDX-License-Identifier: Apache-2.0
"""What reconcile did or plans, as text and as objects for JSON; and who follows a run."""

from __future__ import annotations

from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hook.reconcile.plan import Action


@dataclass(frozen=True)
class Outcome:
    """The outcome of an action. `problem`: why it failed; `remark`: another problem found meanwhile.

    `reason`: the name of the problem (errors.Reason). `is_busy`: a hook works at this key, so that the next run, or
    that hook, does the action: no failure.
    """

    action: Action
    problem: str | None = None
    remark: str | None = None
    reason: str | None = None
    is_busy: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether the action is left undone."""
        return self.problem is not None and not self.is_busy


@dataclass(frozen=True)
class Result:
    """The actions that were done, or are planned. `left`: a line for each problem that reconcile does not change.

    `undone`: how many actions were not begun, since the run was ended.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    undone: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether no action is left undone: none failed, unless a later one did as much for the same container."""
        last = {it.action.container or it.action.path or it.action.key: it for it in self.outcomes}
        return not self.undone and not any(it.has_failed for it in last.values())

    def __add__(self, other: Result) -> Result:
        outcomes, left = [*self.outcomes, *other.outcomes], [*self.left, *other.left]
        return Result(outcomes, left, self.undone + other.undone)


class Follower:
    """Follows a run. This one reports nothing and lets it go on to its end. `is_over`: begin no further action."""

    is_over = False

    def begin(self, action: Action, number: int, total: int) -> None:
        """An action begins, the `number`th of `total` in this pass."""

    def end(self, outcome: Outcome) -> None:
        """An action was done, or has failed."""


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
    return {"dry_run": dry_run, "actions": actions, "left": result.left, "undone": result.undone}


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
