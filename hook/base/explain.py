# SPDX-License-Identifier: Apache-2.0
"""Exceptions as operators see them. Imported when something failed."""

from __future__ import annotations

import errno

from hook.base import system
from hook.base.errors import HookError
from hook.base.reasons import Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


def errno_name(error: OSError) -> str:
    """`ENOSPC` and the like: what an operator can look up."""
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def explain(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first of the errors that a model found in what it was given: where, and what."""
    first = errors[0]
    return f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"


def refused(problem: str, error: OSError) -> HookError:
    """A HookError `io` for a system call of ours that failed outside of resctrl."""
    hints = {
        errno.ENOSPC: "the file system of the run directory is full, or out of inodes",
        errno.EROFS: "the file system of the run directory is read-only",
        errno.EMFILE: "the runtime left the hook no free descriptor",
    }
    hint = hints.get(error.errno or 0, "")
    if error.errno in (errno.EACCES, errno.EPERM) and system.user_id() != 0:
        hint = "run it as root"
    name = f" {error.filename!r}" if error.filename is not None else ""
    code = errno_name(error)
    tried = f"{error.strerror or error}{name}" + (f": {code}" if code != error.strerror else "")
    return HookError(Reason.IO, problem, tried=tried, hint=hint)


def known(problem: str, error: HookError | OSError) -> HookError:
    """A HookError as it is, or one with this problem for a system call of ours that failed."""
    return error if isinstance(error, HookError) else refused(problem, error)


def unforeseen(error: BaseException) -> HookError:
    """A HookError for an unforeseen exception: its type, its text and where it came from."""
    traceback = error.__traceback__
    place = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        place = f" at {code.co_filename}:{traceback.tb_lineno} in {code.co_name}"
        traceback = traceback.tb_next
    return HookError(
        Reason.IO,
        f"unforeseen {type(error).__name__}: {error}",
        tried="the hook itself" + place,
        hint="a defect of resctrl-mon-hook: please report this line",
    )
