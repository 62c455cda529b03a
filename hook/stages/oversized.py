# SPDX-License-Identifier: Apache-2.0
"""What is used of a state that is larger than a hook keeps: its head, which no author of a pod writes.

A pod's author can make its annotations, and so the state, as large as he likes (a preStop command of 900 kB is enough).
Runtimes write id, status, pid and bundle before the annotations. Imported when a state is that large.
"""

from __future__ import annotations

from hook.base import jsontext
from hook.base.errors import HookError
from hook.base.reasons import Reason
from hook.stages import create

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hook.base.models import State

_WHITE = frozenset(" \t\n\r")


def read_head(text: str) -> dict[str, Any]:
    """The members of a JSON object, of which this is the beginning, up to the first one that is not whole in it.

    Only those of the outermost object: what looks like one inside a text or another object is a part of a value. A
    value counts once what follows it is there, for a number may go on. `ociVersion` is not used, and so not missed.
    """
    found: dict[str, Any] = {"ociVersion": ""}
    at, before = _skip_white(text, 0), "{"
    try:
        while text[at : at + 1] == before:
            name, at = jsontext.scan(text, _skip_white(text, at + 1))
            at = _skip_white(text, at)
            if not isinstance(name, str) or text[at : at + 1] != ":":
                break
            value, at = jsontext.scan(text, _skip_white(text, at + 1))
            at, before = _skip_white(text, at), ","
            if text[at : at + 1] in (",", "}"):
                found[name] = value
    except (StopIteration, ValueError, RecursionError):
        pass
    return found


def find_annotations(state: State, limit: int) -> tuple[dict[str, str] | None, HookError]:
    """The annotations of a container whose state is larger than `limit`, and `bad_state`, which says where from.

    None: they are too large everywhere. Then no filter leaves the container out: no author can evade by size.
    """
    problem = f"its state is larger than {limit} bytes, and only the beginning is used"
    if state.annotations is not None:
        return state.annotations, HookError(Reason.BAD_STATE, problem)
    config = create.read_config(state.bundle)
    if config is not None:
        return config.annotations or {}, HookError(Reason.BAD_STATE, f"{problem}: annotations are the bundle's")
    problem += ": its names are unknown, and no filter leaves it out"
    return None, HookError(Reason.BAD_STATE, problem, hint="the pod's author may have written that much on purpose")


def _skip_white(text: str, at: int) -> int:
    while text[at : at + 1] in _WHITE:
        at += 1
    return at
