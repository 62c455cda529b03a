# SPDX-License-Identifier: Apache-2.0
"""The run directory when something in it is broken, or in the way. Imported when that is so."""

from __future__ import annotations

import errno

from hook.base import names, system
from hook.base.errors import HookError
from hook.base.explain import explain
from hook.base.models import KeyState, ValidationError
from hook.base.reasons import Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import Kind
    from hook.state.rundir import RunDir

ASIDE = ".json.unreadable-"
"""Between a key and an inode: the name of a record that could not be understood."""
_UNREADABLE = (errno.ELOOP, errno.EISDIR, errno.EFBIG, errno.ENXIO)  # a link, a directory, a giant, a socket


def of_owner(path: str, owner: int, mode: int) -> HookError:
    """`io`: a user other than root could plant files in the run directory, or this is no root."""
    if owner == 0 and not mode & 0o022:
        return HookError(Reason.IO, f"the run directory {path} is root's", hint="run it as root")
    hint = f"remove it, or make it root's with mode 0755 (it is uid {owner}'s, mode {mode & 0o7777:04o})"
    problem = f"the run directory {path} is not owned by root, or is writable by others"
    return HookError(Reason.IO, problem, hint=hint)


def of_lock(run_dir: str, key: str) -> HookError:
    """`lock_timeout`."""
    return HookError(
        Reason.LOCK_TIMEOUT,
        f"timed out waiting for the lock of key {key}",
        tried=f"flock {run_dir}/locks/{key}",
        hint="another hook of this pod is stuck, or the node is starved: raise --lock-timeout",
    )


def of_index(run_dir: str, container: str, error: Exception) -> HookError:
    """`io`: which key a container belongs to cannot be read."""
    problem = f"the index of container {container} cannot be read ({_explain(error)})"
    hint = f"`reconcile` drops its member once it is dead; the file is {run_dir}/members/{container}.json"
    return HookError(Reason.IO, problem, hint=hint)


def set_aside(run: RunDir, key: str, error: Exception) -> KeyState:
    """Put a record that cannot be understood aside, and go on with one that is recovering. Under the key's lock.

    OSError for a record that cannot be read for another reason than what it is.
    """
    if isinstance(error, OSError) and error.errno not in _UNREADABLE:
        raise error
    path = f"groups/{key}.json"
    # No two files have the same inode at a time, so this name is free, or a name of this very file already.
    aside = f"groups/{key}{ASIDE}{system.inode(path, run.descriptor)}"
    # A second name for what is there, then the new state over the first name: killed in between, or with no room for
    # the new state, the next hook finds the key as unreadable as this one did, and never takes it for new.
    try:
        system.link(path, aside, run.descriptor)
    except FileExistsError:
        pass
    except PermissionError:  # a directory has one name only
        system.rename(path, aside, run.descriptor)
    state = unknown_state(key)
    run.write_key(state)
    problem = f"the state of key {key} cannot be read ({_explain(error)})"
    hint = f"it is kept for a day as {run.path}/{aside}; `reconcile` rebuilds the key"
    run.complaints.append(HookError(Reason.IO, problem, hint=hint))
    return state


def unknown_state(key: str) -> KeyState:
    """Make the state of a key of which only the name is known."""
    kind: Kind = "container"
    try:
        if names.pod_uid(key) == key:
            kind = "pod"
    except ValueError:
        pass
    now, boottime = system.now_utc(), system.boottime()
    return KeyState(key=key, kind=kind, recovering=True, created_at=now, created_boottime=boottime)


def _explain(error: Exception) -> str:
    return explain(error.errors()) if isinstance(error, ValidationError) else str(error)
