# SPDX-License-Identifier: Apache-2.0
"""What reconcile did or plans, as text and as objects for JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hook.reconcile.plan import Action


@dataclass(frozen=True)
class Outcome:
    """The outcome of an action. `problem`: why it failed; `remark`: another problem found meanwhile."""

    action: Action
    problem: str | None = None
    remark: str | None = None


@dataclass(frozen=True)
class Result:
    """The actions that were done, or are planned. `left`: a line for each problem that reconcile does not change."""

    outcomes: list[Outcome] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def format_outcomes(outcomes: list[Outcome], left: list[str]) -> list[str]:
    """A line for each action, its problem and its remark, and for each thing that stays as it is."""
    return [*(line for it in outcomes for line in _format_outcome(it)), *(f"left: {line}" for line in left)]


def _format_outcome(it: Outcome) -> list[str]:
    problem = [f"  failed: {it.problem}"] if it.problem is not None else []
    return [str(it.action), *problem, *([f"  {it.remark}"] if it.remark is not None else [])]


def to_json(outcomes: list[Outcome], left: list[str], *, dry_run: bool) -> dict[str, Any]:
    """The same as an object for JSON."""
    return {"dry_run": dry_run, "actions": [_outcome_to_json(it) for it in outcomes], "left": left}


def _outcome_to_json(it: Outcome) -> dict[str, Any]:
    names = {"action": it.action.verb, "key": it.action.key, "container": it.action.container, "path": it.action.path}
    return {
        **{name: value or None for name, value in names.items()},
        "why": it.action.why,
        "problem": it.problem,
        "remark": it.remark,
    }
