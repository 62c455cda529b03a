# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the annotations that say whose container it is. Imported when something is."""

from __future__ import annotations

from hook.base.errors import HookError
from hook.base.reasons import Reason

_WITHOUT = "--key=container works without it"


def of_annotations(uid: str | None, wrong: set[str]) -> HookError:
    """`bad_key`. `uid`: the pod's, in the path of the cgroup. `wrong`: what the annotations say instead."""
    said = ", ".join(repr(text[:80]) for text in sorted(wrong))
    if uid is not None:
        problem = f"the annotations name another pod ({said}) than the cgroup, whose pod {uid} is charged"
        return HookError(Reason.BAD_KEY, problem, hint="the pod's author may want to bill that other pod")
    if len(wrong) > 1:
        problem = f"the annotations name two pods ({said}), and the cgroup names none"
        return HookError(Reason.BAD_KEY, problem, hint=f"a pod's author may have added one; {_WITHOUT}")
    problem = f"the annotations hold an invalid pod UID: {said}"
    return HookError(
        Reason.BAD_KEY, problem, hint=f"a pod UID is 36 characters with dashes, or 32 hex digits; {_WITHOUT}"
    )


def of_cgroup(bundle: str) -> HookError:
    """`bad_key`: of a container that runs already nothing that can be believed says which pod it is of."""
    problem = f"cannot tell which pod it belongs to: {bundle}/config.json has no absolute linux.cgroupsPath"
    return HookError(Reason.BAD_KEY, problem, hint=f"restart the container, so that its hook runs; {_WITHOUT}")


def of_sandbox(sandbox_id: str) -> HookError:
    """`bad_key`."""
    problem = f"the annotations hold an invalid sandbox ID: {sandbox_id[:80]!r}"
    return HookError(Reason.BAD_KEY, problem, hint=_WITHOUT)
