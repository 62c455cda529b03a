# SPDX-License-Identifier: Apache-2.0
"""Reads a container's state that is too large or invalid.

The core imports this only for such a state.
"""

from __future__ import annotations

from hook import context, formats, names
from hook.errors import UNNAMED, HookError, Reason
from hook.models import State
from hook.words import explain_exception

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.context import Call
    from hook.models import Options

_WHITE = frozenset(" \t\n\r")


class OddState:
    """What can be used of a state that is too large or invalid.

    A pod's author can make the annotations, and so the state, of any size (a preStop command of 900
    kB is enough). Runtimes write id, status, pid and bundle before the annotations.
    """

    def __init__(self, text: bytes, *, is_large: bool) -> None:
        """Parse the text; of one that `is_large` only the beginning is there."""
        self._is_large = is_large
        self._problem: Exception | None = None
        self._bad_id: str | None = None
        # None if it is invalid.
        self.state: State | None = None
        content: object = None
        try:
            content = (
                read_head(text.decode("utf-8", "replace"))
                if is_large
                else formats.loads(text.decode())
            )
            self.state = State.model_validate(content)
        except ValueError as error:
            self._problem = error
        known = content if isinstance(content, dict) else {}
        name, status = known.get("id"), known.get("status")
        if isinstance(name, str) and not names.is_container_id(name):
            self._bad_id = name
            text, name = name.encode("utf-8", "surrogatepass"), None  # the record is named by this
        # The container's ID, or a stable name for its record.
        self.name: str = name if isinstance(name, str) else UNNAMED + formats.hash_of(text)
        self.status = status if isinstance(status, str) else None
        self.bundle = self.state.bundle if self.state is not None else None

    def explain(self, error: BaseException | None, patience: float, limit: int) -> BaseException:
        """Return the failure of a call with this state, which ended with an error,
        or for want of a whole state.
        """
        error = error or (self._problem if self._is_large else None)
        if self._bad_id is not None:
            why = f"{self._bad_id[:80]!r} is not a container ID"
        elif error is None:
            why = f"it did not end within {patience:.0f} seconds"
        elif isinstance(error, (OSError, ValueError)):
            why = explain_exception(error)
        else:
            return error
        cut = (
            f"; it is larger than {limit} bytes, and only the beginning is used"
            if self._is_large
            else ""
        )
        return HookError(
            Reason.BAD_STATE, "bad state", problem=f"no container state on stdin: {why}{cut}"
        )


def make_call(
    verb: str,
    given: tuple[Options, list[str]],
    text: bytes,
    error: BaseException | None,
    limits: tuple[int, float],
) -> tuple[Call, HookError | None, BaseException | None]:
    """Make a call whose state is too large by its beginning.

    Returns the call, a defect of the state to report after the act, and why there can be no act.

    `text` is the beginning of stdin, `limits` are its bytes and seconds. `error` says why the state
    is invalid; without one, `text` is not all of it.
    """
    limit, patience = limits
    is_large = error is None and len(text) == limit
    odd = OddState(text, is_large=is_large)
    stage = context.name_stage(verb, odd.status) if odd.status is not None else verb
    if is_large and odd.state is not None:
        annotations: dict[str, str] | None = None
        problem: HookError | None = None
        if stage == "createRuntime":
            annotations, problem = find_annotations(odd.state, limit)
        try:
            return context.make_call(verb, given, odd.state, annotations), problem, None
        except (HookError, ValueError) as caught:
            error = caught
    call = context.new_call(stage, given, odd.name, odd.bundle)
    return call, None, odd.explain(error, patience, limit)


def read_head(text: str) -> dict[str, object]:
    """Parse the beginning of a JSON object: its members up to the first incomplete one.

    Members of nested objects do not count. A value counts only if the text goes on after it, since
    a number might continue. `ociVersion` is not used, so its default is filled in.
    """
    members: dict[str, object] = {"ociVersion": ""}
    text = formats.cut_deep(text)
    at, before = _skip_white(text, 0), "{"
    try:
        while text[at : at + 1] == before:
            name, at = formats.scan(text, _skip_white(text, at + 1))
            at = _skip_white(text, at)
            if not isinstance(name, str) or text[at : at + 1] != ":":
                break
            value, at = formats.scan(text, _skip_white(text, at + 1))
            at, before = _skip_white(text, at), ","
            if text[at : at + 1] in (",", "}"):
                members[name] = value
    except (StopIteration, ValueError):
        pass
    return members


def find_annotations(state: State, limit: int) -> tuple[dict[str, str] | None, HookError]:
    """Return the annotations of a container whose state is too large,
    and a `bad_state` that says where they are from.

    They may be too large in the bundle, too. Then we ignore the filters: otherwise a tenant could
    escape monitoring by padding its annotations.
    """
    problem = f"its state is larger than {limit} bytes, and only the beginning is used"
    config = context.read_config(state.bundle) if state.annotations is None else None
    if state.annotations is not None or config is not None:
        annotations = state.annotations if config is None else config.annotations
        return annotations or {}, HookError(Reason.BAD_STATE, problem)
    problem += ": its names are unknown, and no filter leaves it out"
    return None, HookError(
        Reason.BAD_STATE, problem, hint="the pod's author may have written that much on purpose"
    )


def _skip_white(text: str, at: int) -> int:
    while text[at : at + 1] in _WHITE:
        at += 1
    return at
