# SPDX-License-Identifier: Apache-2.0
"""Words failures, exceptions and names for an operator. The core imports this only after a failure.

Source of what errnos of resctrl mean: Documentation/filesystems/resctrl.rst and
fs/resctrl/rdtgroup.c of the kernel.
"""

from __future__ import annotations

import errno

from hook import host, names, system
from hook.errors import WRONG_CTRL_GROUP
from hook.rare import as_hook_error

_DENIED_HINTS = {
    errno.EROFS: "resctrl is mounted read-only",
    errno.EACCES: "the hook needs root with CAP_DAC_OVERRIDE; "
    "look for SELinux or AppArmor denials as well",
    errno.EPERM: "this machine's resctrl may do allocation only, without monitoring",
}
_SYSTEM_HINTS = {
    errno.ENOSPC: "the file system of {place} is full, or out of inodes",
    errno.EROFS: "the file system of {place} is read-only",
    errno.EMFILE: "the runtime left the hook no free descriptor",
}
_LONGEST_LINE = 1000
_SHORT_LENGTH = 12  # of an engine's ID where people read it, as Podman and crictl print it


# --- Texts of tenants, made safe to print


def printable(text: str, *, is_ascii: bool = True) -> str:
    """Return `text` as one printable line of bounded length,
    so that no tenant can forge log lines.
    """
    short = text if len(text) <= _LONGEST_LINE else text[:_LONGEST_LINE] + "..."
    return "".join(
        c if c.isprintable() and (c <= "~" or not is_ascii) else ascii(c)[1:-1] for c in short
    )


def short_id(container: str) -> str:
    """Return the first 12 digits of an engine's container ID, or another name whole."""
    return container[:_SHORT_LENGTH] if names.is_engine_id(container) else container


def who(
    container: str, namespace: str | None = None, pod: str | None = None, name: str | None = None
) -> str:
    """Name a container for people: `namespace/pod container (12 digits of the ID)`,
    less what is unknown.

    Podman's pods have no namespace.
    """
    known = [*filter(None, (name_pod(namespace, pod), name))]
    return printable(
        " ".join([*known, f"({short_id(container)})"]) if known else short_id(container)
    )


def name_pod(namespace: str | None, pod: str | None) -> str:
    """Return `namespace/pod`, or only the name of a pod without a namespace,
    as Podman's are; or nothing.
    """
    return f"{namespace}/{pod}" if namespace and pod else pod or ""


def errno_name(error: OSError) -> str:
    """Return the symbol of an errno, such as ENOSPC, which an operator can look up."""
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def is_invalid(error: Exception) -> bool:
    """Whether a model has refused its input:
    of each form of the models the error has its details in `errors`.
    """
    return hasattr(error, "errors")


def explain_exception(error: Exception) -> str:
    """Word an exception in one line: a ValidationError by its first error,
    a system call by its path and errno.
    """
    if is_invalid(error):
        first = error.errors()[0]  # type: ignore[attr-defined]
        return f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"
    if not isinstance(error, OSError):
        return str(error)
    path, code = _find_path(error), errno_name(error)
    name = f" {path!r}" if path is not None else ""
    return f"{error.strerror or error}{name}" + (f": {code}" if code != error.strerror else "")


def _find_path(error: OSError) -> str | None:
    """Return the path of a system call that failed, if it has one: it can be bytes,
    and a descriptor as well.
    """
    path = error.filename
    if isinstance(path, bytes):
        return path.decode("utf-8", "surrogateescape")
    return path if isinstance(path, str) else None


def format_count(number: int, noun: str) -> str:
    """Return a number of things: `1 container`, `2 containers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# --- Failures in words


class Wording:
    """A failure in an operator's words, which are one line.

    `problem` is what is wrong, `tried` the operation that failed, with its errno, and `hint` what
    to do about it. `kernel` is `info/last_cmd_status` just after it; the machine has only one, so
    another process may have caused it.
    """

    def __init__(self, problem: str, *, tried: str = "", kernel: str = "", hint: str = "") -> None:
        self.problem, self.tried, self.kernel, self.hint = problem, tried, kernel, hint

    def __str__(self) -> str:
        more = (("tried", self.tried), ("kernel", self.kernel), ("hint", self.hint))
        return "; ".join([self.problem, *(f"{name}: {text}" for name, text in more if text)])


def explain(error: BaseException) -> Wording:
    """Word a failure of any kind: by its entry in PROBLEMS, by its function,
    or in the words that it has.
    """
    known = as_hook_error("a file could not be read or written", error)
    kind, facts = known.kind, known.facts
    if kind == "system call":
        return _word_system_call(**facts)
    if kind == "defect":
        return _word_defect(**facts)
    if kind not in PROBLEMS:
        return Wording(kind, **facts)
    if "operation" in facts:
        facts = {**facts, **_describe_refusal(**facts)}
    if kind == "no directory":
        facts = _describe_obstacle(**facts)
    texts = {
        name: explain_exception(fact) if isinstance(fact, Exception) else fact
        for name, fact in facts.items()
    }
    problem, hint = (text.format(**texts) for text in (PROBLEMS[kind], _HINTS.get(kind, "")))
    return Wording(problem, tried=texts.get("tried", ""), kernel=texts.get("kernel", ""), hint=hint)


PROBLEMS = {
    "bad ctrl_group": "{name!r} is not a valid name of a ctrl_group",
    "bad sandbox": (
        "the annotations hold an invalid sandbox ID: {sandbox_id!r}; its own ID is its key"
    ),
    "bad state": "{problem}",
    "dropped lines": "too many lines of history wait to be written; dropped: {number}",
    "group gone": "the mon_group was removed again and again while it was being used",
    "job locked": "timed out waiting for the lock of key {key}",
    "limbo": "no RMID is left: some were freed, but the kernel cannot reuse them yet (limbo)",
    "locked": "timed out waiting for the lock of key {key}",
    "no RMIDs": "no RMID is left for this key",
    "no ctrl_group": "the ctrl_group does not exist (no {parent})",
    "no directory": (
        "the run directory {path} cannot be used: {obstacle} is {what}, not a directory"
    ),
    "no process": "the container's process {pid} is gone",
    "not host namespaces": f"no RMID is reclaimed: {host.NOT_HOST_NAMESPACES}",
    "not mounted": "resctrl is not mounted, or cannot monitor: no {root}/mon_groups",
    "not rebuilt": "the record of key {key} is not rebuilt yet",
    "not root's": (
        "the run directory {path} is not ours alone: its owner is uid {owner}, its mode {mode:04o}"
    ),
    "other kind": "the key {key} is on record as that of a {former}",
    "other labels": "job {key} has the labels {known}, not {given}",
    "refused": "the kernel refused an operation on a mon_group",
    "second key": "process {pid} is {member}, a member of key {key}: a process is in one key",
    "unclear pod": (
        "the annotations name no valid pod UID, or several ({found}), and the cgroup names none"
    ),
    "unknown cgroup": "the cgroup of process {pid} cannot be read, so its pod is unknown",
    "unmounted": "resctrl was unmounted just now",
    "unreadable index": "the index of container {container} cannot be read ({error})",
    "unreadable process": "cannot read the container's process {pid} in /proc",
    "unreadable state": "the state of key {key} cannot be read ({error})",
    "unwritten lines": "could not add {what} to {path}",
    WRONG_CTRL_GROUP: "the container's process is in another ctrl_group than the mon_group",
    "wrong pod": (
        "the annotations name another pod ({found}) than the cgroup, whose pod {uid} is charged"
    ),
}
"""What is wrong, by the kind of a failure, with places for its facts."""
_WITHOUT = "--key=container works without it"
_HINTS = {
    "bad sandbox": _WITHOUT,
    "bad state": (
        "a runtime that does not follow the OCI runtime specification, or the hook was started by "
        "hand"
    ),
    "group gone": "another tool resets resctrl: pqos, CRI-O starting, or a second monitoring agent",
    "job locked": (
        "another run, assign or release of this job holds its lock for longer than --lock-timeout"
    ),
    "limbo": (
        "they come back as their cache lines go, sooner with a higher "
        "info/L3_MON/max_threshold_occupancy"
    ),
    "locked": "another hook of this pod is stuck, or the node is starved: raise --lock-timeout",
    "no RMIDs": (
        "more groups than RMIDs (info/*/num_rmids; on arm64 the PMGs of one ctrl_group), or "
        "groups that others leaked"
    ),
    "no ctrl_group": "the class that the container was given must exist before it starts",
    "no directory": "`mv {obstacle} {obstacle}.moved`: the next hook makes the directory",
    "not host namespaces": "run `reconcile` on the host, or take the hook out of that namespace",
    "not mounted": "mount -t resctrl resctrl {root}, then reconcile",
    "not rebuilt": "`reconcile` rebuilds it, and tries again",
    "not root's": "run it as root; remove the directory, or make it root's with mode 0755",
    "other kind": (
        "a job and a container share no key: choose another --key for the job, or release it"
    ),
    "other labels": "give those or none, or use another --key",
    "refused": "{hint}",
    "unclear pod": (
        "a pod UID is 36 characters with dashes, or 32 hex digits; a pod's author may have added "
        f"one; {_WITHOUT}"
    ),
    "unknown cgroup": "`reconcile` tries again, by the cgroup in the bundle",
    "unreadable index": (
        "`reconcile` drops its member once it is dead; the file is "
        "{run_dir}/members/{container}.json"
    ),
    "unreadable state": "it is kept for a day as {kept}; `reconcile` rebuilds the key",
    "unwritten lines": (
        "its directory must exist, be writable and have room; reconcile writes what is kept until "
        "then"
    ),
    "wrong pod": "the pod's author may want to bill that other pod",
}
"""What to do about it, if there is something."""
_OPERATIONS = {
    "mkdir": "mkdir {path}",
    "write": "write {pid} to {path}/tasks",
    "read": "read {path}/mon_data",
    "rmdir": "rmdir {path}",
}


def _describe_refusal(operation: str, path: str, error: OSError, **facts: object) -> dict[str, str]:
    """Return more facts about an operation on a mon_group that the kernel refused."""
    return {
        "parent": path.rpartition("/")[0],
        "tried": f"{_OPERATIONS[operation].format(path=path, **facts)}: {errno_name(error)}",
        "hint": _DENIED_HINTS.get(error.errno or 0, ""),
    }


def _describe_obstacle(path: str, **_facts: object) -> dict[str, str]:
    """Return what is in the place of a directory, or of one above it."""
    obstacle, what = path.rstrip("/"), "a file"
    while obstacle.count("/") > 1:
        try:
            what = f"a link to {printable(host.link_target(obstacle))}"
        except NotADirectoryError:
            obstacle = obstacle.rpartition("/")[0]
            continue
        except (OSError, ValueError):  # it is no link
            pass
        break
    return {"path": path, "obstacle": obstacle, "what": what}


def _word_system_call(problem: str, error: OSError) -> Wording:
    # Of a file in the run directory it is relative, or there is none.
    path = _find_path(error) or ""
    hint = _SYSTEM_HINTS.get(error.errno or 0, "").format(
        place=path if path[:1] == "/" else "the run directory"
    )
    if error.errno in (errno.EACCES, errno.EPERM) and system.user_id() != 0:
        hint = "run it as root"
    return Wording(problem, tried=explain_exception(error), hint=hint)


def _word_defect(error: BaseException) -> Wording:
    """Word a defect of the hook: the exception's type and text, and the line that raised it."""
    if isinstance(error, MemoryError):
        return Wording("there is too little memory" + (f": {error}" if str(error) else ""))
    traceback, place = error.__traceback__, ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        place = f" at {code.co_filename.strip('<>')}:{traceback.tb_lineno} in {code.co_name}"
        traceback = traceback.tb_next
    hint = "a defect of resctrl-mon-hook: please report this line"
    return Wording(
        f"unforeseen {type(error).__name__}: {error}", tried=f"the hook itself{place}", hint=hint
    )
