# SPDX-License-Identifier: Apache-2.0
"""Words failures for an operator, and reports each by three independent traces: syslog, stderr, and a record.

It also limits how many failures are logged, and reads a state that is too large or invalid. The core imports this only
after a failure.

    logged-<reason>.<key>-<minute>  as many bytes as there were failures of this key (minutes on CLOCK_BOOTTIME)
    logged-<minute>               as many bytes as were logged
    logged-<reason>-<minute>      as many bytes as were not

Source of what errnos of resctrl mean: Documentation/filesystems/resctrl.rst and fs/resctrl/rdtgroup.c of the kernel.
"""

from __future__ import annotations

import errno

from hook import identity, names, poststop, system
from hook.errors import UNNAMED, WRONG_CTRL_GROUP, HookError, Reason, as_hook_error
from hook.models import Failure, State, ValidationError
from hook.resctrl import Resctrl
from hook.store import RunDir
from hook.validation import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from hook.entry import Call
    from hook.identity import Container, Key
    from hook.models import Options

_IDENTIFIER = "resctrl-mon-hook"
_PRIORITY = 3 << 3 | 4  # LOG_DAEMON, LOG_WARNING: syslog(3)
_DENIED_HINTS = {
    errno.EROFS: "resctrl is mounted read-only",
    errno.EACCES: "the hook needs root with CAP_DAC_OVERRIDE; look for SELinux or AppArmor denials as well",
    errno.EPERM: "this machine's resctrl may do allocation only, without monitoring",
}
_RUN_DIR_HINTS = {
    errno.ENOSPC: "the file system of the run directory is full, or out of inodes",
    errno.EROFS: "the file system of the run directory is read-only",
    errno.EMFILE: "the runtime left the hook no free descriptor",
}
_LONGEST_LINE = 1000
_ID_LENGTH = 64  # of the IDs that container engines make
_SHORT_LENGTH = 12  # of such an ID where people read it, as Podman and crictl print it
_MOST_OF_KEY = 10  # lines a minute in syslog, for each key and reason
_MOST_OF_NODE = 200  # lines a minute in syslog, for all of them
_LOGGED = "logged-"
_MINUTE = 60.0
_WHITE = frozenset(" \t\n\r")


# --- Texts of tenants, made safe to print


def printable(text: str) -> str:
    """Return `text` as one line of printable ASCII of bounded length, so that no tenant can forge log lines."""
    short = text if len(text) <= _LONGEST_LINE else text[:_LONGEST_LINE] + "..."
    return "".join(c if " " <= c <= "~" else ascii(c)[1:-1] for c in short)


def short_id(container: str) -> str:
    """The first 12 digits of a container ID of 64 hex digits; another name is returned whole."""
    return container[:_SHORT_LENGTH] if len(container) == _ID_LENGTH and is_hex(container) else container


def is_hex(text: str) -> bool:
    """Return whether a text has only hex digits."""
    return not text.strip("0123456789abcdef")


def who(container: str, namespace: str | None = None, pod: str | None = None, name: str | None = None) -> str:
    """Name a container for people: `namespace/pod container (12 digits of the ID)`, less what is unknown.

    Podman's pods have no namespace.
    """
    known = [*filter(None, (name_pod(namespace, pod), name))]
    return printable(" ".join([*known, f"({short_id(container)})"]) if known else short_id(container))


def name_pod(namespace: str | None, pod: str | None) -> str:
    """Return `namespace/pod`, or only the name of a pod without a namespace, as Podman's are; or nothing."""
    return f"{namespace}/{pod}" if namespace and pod else pod or ""


def errno_name(error: OSError) -> str:
    """The symbol of an errno, such as ENOSPC, which an operator can look up."""
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def explain_invalid(errors: Sequence[Mapping[str, Any]]) -> str:
    """The place and message of the first error that a model found in its input."""
    first = errors[0]
    return f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"


def explain_exception(error: Exception) -> str:
    """An exception's text in one line: of a ValidationError the first error, of a system call its path and errno."""
    if isinstance(error, ValidationError):
        return explain_invalid(error.errors())
    if not isinstance(error, OSError):
        return str(error)
    path, code = error.filename, errno_name(error)
    if isinstance(path, bytes):  # as `system` passes it
        path = path.decode("utf-8", "surrogateescape")
    name = f" {path!r}" if path is not None else ""
    return f"{error.strerror or error}{name}" + (f": {code}" if code != error.strerror else "")


def format_count(number: int, noun: str) -> str:
    """A number of things: `1 container`, `2 containers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# --- Failures in words


class Wording:
    """A failure in an operator's words, which are one line."""

    def __init__(self, problem: str, *, tried: str = "", kernel: str = "", hint: str = "") -> None:
        # What is wrong.
        self.problem = problem
        # The operation that failed, with its errno.
        self.tried = tried
        # `info/last_cmd_status` just after it; the machine has only one, so another process may have caused it.
        self.kernel = kernel
        # What to do about it.
        self.hint = hint

    def __str__(self) -> str:
        more = (("tried", self.tried), ("kernel", self.kernel), ("hint", self.hint))
        return "; ".join([self.problem, *(f"{name}: {text}" for name, text in more if text)])


def explain(error: BaseException) -> Wording:
    """Word a failure of any kind: by its row in WORDS, by its function, or in the words that it has."""
    known = as_hook_error("a file could not be read or written", error)
    kind, facts = known.kind, known.facts
    if kind == "system call":
        return _word_system_call(**facts)
    if kind == "defect":
        return _word_defect(**facts)
    if kind not in WORDS:
        return Wording(kind, **facts)
    if "operation" in facts:
        facts = {**facts, **_describe_refusal(**facts)}
    texts = {name: explain_exception(fact) if isinstance(fact, Exception) else fact for name, fact in facts.items()}
    problem, hint = (text.format(**texts) for text in WORDS[kind])
    return Wording(problem, tried=texts.get("tried", ""), kernel=texts.get("kernel", ""), hint=hint)


_WITHOUT = "--key=container works without it"
WORDS = {
    "bad ctrl_group": ("{name!r} is not a valid name of a ctrl_group", ""),
    "bad sandbox": ("the annotations hold an invalid sandbox ID: {sandbox_id!r}; its own ID is its key", _WITHOUT),
    "bad state": (
        "{problem}",
        "a runtime that does not follow the OCI runtime specification, or the hook was started by hand",
    ),
    "dropped lines": ("too many lines of history wait to be written; dropped: {number}", ""),
    "group gone": (
        "the mon_group was removed again and again while it was being used",
        "another tool resets resctrl: pqos, CRI-O starting, or a second monitoring agent",
    ),
    "job locked": (
        "timed out waiting for the lock of key {key}",
        "another run, assign or release of this job holds its lock for longer than --lock-timeout",
    ),
    "limbo": (
        "no RMID is left: some were freed, but the kernel cannot reuse them yet (limbo)",
        "they come back as their cache lines go, sooner with a higher info/L3_MON/max_threshold_occupancy",
    ),
    "locked": (
        "timed out waiting for the lock of key {key}",
        "another hook of this pod is stuck, or the node is starved: raise --lock-timeout",
    ),
    "no RMIDs": (
        "no RMID is left for this key",
        "more groups than RMIDs (info/*/num_rmids; on arm64 the PMGs of one ctrl_group), or groups that others leaked",
    ),
    "no ctrl_group": (
        "the ctrl_group does not exist (no {parent})",
        "the class that the container was given must exist before it starts",
    ),
    "no process": ("the container's process {pid} is gone", ""),
    "not host pids": (
        f"no RMID is reclaimed: {system.NOT_HOST_PIDS}",
        "run `reconcile` on the host, or take the hook out of the pid namespace",
    ),
    "not mounted": (
        "resctrl is not mounted, or cannot monitor: no {root}/mon_groups",
        "mount -t resctrl resctrl {root}, then reconcile",
    ),
    "not rebuilt": ("the record of key {key} is not rebuilt yet", "`reconcile` rebuilds it, and tries again"),
    "not root's": (
        "the run directory {path} is not ours alone: its owner is uid {owner}, its mode {mode:04o}",
        "run it as root; remove the directory, or make it root's with mode 0755",
    ),
    "other kind": (
        "the key {key} is on record as that of a {former}",
        "a job and a container share no key: choose another --key for the job, or release it",
    ),
    "other labels": ("job {key} has the labels {known}, not {given}", "give those or none, or use another --key"),
    "refused": ("the kernel refused an operation on a mon_group", "{hint}"),
    "unclear pod": (
        "the annotations name no valid pod UID, or several ({found}), and the cgroup names none",
        f"a pod UID is 36 characters with dashes, or 32 hex digits; a pod's author may have added one; {_WITHOUT}",
    ),
    "unknown cgroup": (
        "the cgroup of process {pid} cannot be read, so its pod is unknown",
        "`reconcile` tries again, by the cgroup in the bundle",
    ),
    "unmounted": ("resctrl was unmounted just now", ""),
    "unreadable index": (
        "the index of container {container} cannot be read ({error})",
        "`reconcile` drops its member once it is dead; the file is {run_dir}/members/{container}.json",
    ),
    "unreadable process": ("cannot read the container's process {pid} in /proc", ""),
    "unreadable state": (
        "the state of key {key} cannot be read ({error})",
        "it is kept for a day as {kept}; `reconcile` rebuilds the key",
    ),
    "unwritten lines": (
        "could not add {what} to {path}",
        "its directory must exist, be writable and have room; reconcile writes what is kept until then",
    ),
    WRONG_CTRL_GROUP: ("the container's process is in another ctrl_group than the mon_group", ""),
    "wrong pod": (
        "the annotations name another pod ({found}) than the cgroup, whose pod {uid} is charged",
        "the pod's author may want to bill that other pod",
    ),
}
"""By the kind of a failure: the problem and the hint, with places for its facts."""
_OPERATIONS = {
    "mkdir": "mkdir {path}",
    "write": "write {pid} to {path}/tasks",
    "read": "read {path}/mon_data",
    "rmdir": "rmdir {path}",
}


def _describe_refusal(operation: str, path: str, error: OSError, **facts: Any) -> dict[str, str]:  # noqa: ANN401
    """Return more facts about an operation on a mon_group that the kernel refused."""
    return {
        "parent": path.rpartition("/")[0],
        "tried": f"{_OPERATIONS[operation].format(path=path, **facts)}: {errno_name(error)}",
        "hint": _DENIED_HINTS.get(error.errno or 0, ""),
    }


def _word_system_call(problem: str, error: OSError) -> Wording:
    hint = _RUN_DIR_HINTS.get(error.errno or 0, "")
    if error.errno in (errno.EACCES, errno.EPERM) and system.user_id() != 0:
        hint = "run it as root"
    return Wording(problem, tried=explain_exception(error), hint=hint)


def _word_defect(error: BaseException) -> Wording:
    """Word a defect of the hook: the exception's type and text, and the line that raised it."""
    traceback = error.__traceback__
    place = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        place = f" at {code.co_filename}:{traceback.tb_lineno} in {code.co_name}"
        traceback = traceback.tb_next
    return Wording(
        f"unforeseen {type(error).__name__}: {error}",
        tried="the hook itself" + place,
        hint="a defect of resctrl-mon-hook: please report this line",
    )


# --- What a hook reports


def survive(
    error: BaseException, verb: str, words: list[str], parse: Callable[[list[str]], tuple[Options, list[str]]]
) -> int:
    """Report and count an exception that escaped everything else; returns the exit status.

    The command line is all that is known of the call. `parse` reads its options.
    """
    say(str(explain(HookError(Reason.IO, "defect", error=error))))
    try:
        RunDir(parse(words)[0].run_dir).count_run(verb + "-failed")
    except Exception:  # noqa: BLE001, S110  the defect may be there
        pass
    return int(verb == "createRuntime" and "--strict" in words)


def report(call: Call, run: RunDir | None, error: BaseException, problems: list[HookError]) -> int:
    """Report that a container is not monitored; returns the exit status. A defect counts as any other failure."""
    failure = as_hook_error("a file could not be read or written", error)
    is_failure = call.container is None or not Resctrl(call.options.resctrl_root).is_gone(call.options.resctrl_root)
    if is_failure:
        run = leave_traces(call, run, failure, is_monitored=False)
    elif run is None or run.is_first("no-resctrl"):  # each time, if the run directory cannot hold the mark
        say(f"no {call.options.resctrl_root} here: nothing is monitored on this machine")
    complain(call, run, problems, is_monitored=False)
    if run is not None:
        run.count_run(call.stage + ("-failed" if is_failure else "-done"))
    return int(is_failure and call.options.strict and call.stage == "createRuntime")


def complain(call: Call, run: RunDir | None, problems: list[HookError], *, is_monitored: bool) -> None:
    """Report problems that stopped nothing: bad options, and damaged files that were handled."""
    for error in problems:
        _say_of(call, run, error)
    if not call.complaints:
        return
    hint = "ignored; see the hooks.d JSON, and `help hook`"
    usage = HookError(Reason.USAGE, "; ".join(call.complaints), hint=hint)
    if is_monitored:
        leave_traces(call, run, usage, is_monitored=True)
    else:
        _say_of(call, run, usage)


def leave_traces(call: Call, run: RunDir | None, error: HookError, *, is_monitored: bool) -> RunDir | None:
    """Report what is wrong with a container, by the three traces. Returns the run directory, if it can be opened."""
    if run is None:
        try:
            run = RunDir(call.options.run_dir)
        except Exception:  # noqa: BLE001, S110  then there is no record, only the two other traces
            pass
    _say_of(call, run, error)
    if run is not None and call.stage == "poststop" and error.reason == Reason.BAD_STATE:
        poststop.forget_failure(run, call.name)  # the container goes, and its record with it
        return run
    key = guess_key(call.options, call.container) if call.container is not None else None
    failure = make_failure(error, call.stage, call.container or call.name, key, is_monitored=is_monitored)
    record(run, failure if call.container is not None else replace(failure, bundle=call.bundle))
    return run


def _say_of(call: Call, run: RunDir | None, error: HookError) -> None:
    pod = call.container.pod if call.container is not None else None
    # A pod's author has a container of another ID with each restart, and an invalid state has no name at all.
    key = pod.uid if pod is not None and pod.uid else UNNAMED if call.name.startswith(UNNAMED) else call.name
    to_syslog = may_log(run, error, key)
    name = who(call.name, *((pod.namespace, pod.name, pod.container) if pod is not None else ()))
    say(f"{call.stage} {name}: {error.reason}: {explain(error)}", to_syslog=to_syslog)


def may_log(run: RunDir | None, error: HookError, key: str) -> bool:
    """Whether a failure goes to syslog: the first ones a minute of its key and reason (count_failure).

    That resctrl is not mounted goes there once in a boot. This logs the counts of earlier minutes.
    """
    if run is None:
        return True
    try:
        if error.reason == Reason.NOT_MOUNTED:
            return run.is_first("not-mounted")
        is_first, counts = count_failure(run, error.reason, key)
        for line in counts:
            log(line)
        return is_first
    except Exception:  # noqa: BLE001  as above
        return True


def guess_key(options: Options, container: Container) -> Key | None:
    """Derive the key of a container that is not monitored, for its record. Returns None if that fails.

    It does if the container's start time is unknown, so that /proc may not have shown its cgroup.
    """
    if container.starttime is None:
        return None
    try:
        return identity.derive_key(options.key, container.id, container.annotations, container.pod)
    except HookError:
        return None


# --- The traces


def say(text: str, *, to_syslog: bool = True) -> None:
    """Write one line to stderr, and one to syslog."""
    line = printable(text)
    try:
        system.write_stderr(f"{_IDENTIFIER}: {line}".encode())
    except Exception:  # noqa: BLE001, S110  a trace that fails must not cost the other ones
        pass
    if to_syslog:
        log(line)


def log(text: str) -> None:
    """Send one line to syslog without blocking: if /dev/log is full, it is lost, and no container waits.

    Format: RFC 3164, as syslog(3) sends it.
    """
    try:
        import _socket

        stamp = system.syslog_time()
        datagram = f"<{_PRIORITY}>{stamp} {_IDENTIFIER}[{system.process_id()}]: {printable(text)}".encode()
        sender = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        try:
            sender.setblocking(False)
            sender.connect("/dev/log")
            sender.send(datagram, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
        finally:
            sender.close()
    except Exception:  # noqa: BLE001, S110  as above
        pass


def record(run: RunDir | None, failure: Failure) -> None:
    """Write the record that `list`, `doctor` and `metrics` show, if the run directory could be opened."""
    if run is None:
        return
    try:
        try:
            with run.lock(failure.container, system.monotonic() + poststop.FAILURE_PATIENCE):
                _write(run, failure)
        except (HookError, OSError):  # a full /run may have room for the record alone
            _write(run, failure, owner=f"unlocked-{system.process_id()}")
    except Exception as error:  # noqa: BLE001  a full /run, for one: reported, and survived
        say(f"could not write the record of this failure: {explain_exception(error)}")
        run.count_run("unrecorded")  # for `list`: a byte often fits where a record does not


def _write(run: RunDir, failure: Failure, owner: str = "") -> None:
    """Write the record. `owner` names the temporary file, which a writer without the lock shares with no other."""
    # A late poststop may fail when the container has started again, and that start's own failure stays on record.
    if failure.stage != "poststop" or not poststop.has_live_failure(run, failure.container):
        run.write(Failure, failure.container, failure, owner)


def make_failure(
    error: HookError, stage: str, subject: Container | str, key: Key | None = None, *, is_monitored: bool = False
) -> Failure:
    """Make the record of a failure, with all that reconcile needs to try again.

    `subject` is the container or, if nothing is known of that, the name of the record.
    """
    words = explain(error)
    fields: dict[str, Any] = {"container": subject}
    if not isinstance(subject, str):
        pod = subject.pod
        fields = {
            "container": names.get_container_id(subject.id),
            "bundle": subject.bundle,
            "pid": subject.pid or None,
            "starttime": subject.starttime,
            "namespace": pod.namespace,
            "pod": pod.name,
            "name": pod.container,
            "history_file": subject.history_file,
            "labels": subject.labels,
        }
    if key is not None:
        fields.update(key=key.name, kind=key.kind)
    return Failure(
        stage=stage,
        reason=error.reason,
        problem=printable(words.problem),
        tried=printable(words.tried),
        kernel=printable(words.kernel),
        hint=printable(words.hint),
        monitored=is_monitored,
        time=system.now_utc(),
        boottime=system.boottime(),
        **fields,
    )


# --- The number of failures in a minute, so that the log gets the first ones of each key and reason, and then a count


def count_failure(run: RunDir, reason: str, key: str) -> tuple[bool, list[str]]:
    """Count a failure. Returns whether to log it, and a line for each count of an earlier minute.

    One key cannot use up the lines of another, and all keys together have a limit, too, which also bounds the number of
    files. A failure is logged, too, if it cannot be counted, or if another process removed the count. No lock
    is needed: the position of an append is the failure's number.
    """
    minute = _this_minute()
    try:
        if (system.try_call(system.size, f"{_LOGGED}{minute}", run.descriptor) or 0) < _MOST_OF_NODE:
            number, is_kept = system.append(f"{_LOGGED}{reason}.{key}-{minute}", ".", run.descriptor)
            if number <= _MOST_OF_KEY or not is_kept:
                number, _ = system.append(f"{_LOGGED}{minute}", ".", run.descriptor)
                return True, sum_up_failures(run) if number == 1 else []
        system.append(f"{_LOGGED}{reason}-{minute}", ".", run.descriptor)
    except OSError:
        return True, []
    return False, []


def sum_up_failures(run: RunDir) -> list[str]:
    """Remove the counts of earlier minutes. Returns a line for each reason with failures that were not logged."""
    lines = []
    try:
        for name in system.list_directory(".", run.descriptor):
            what, _, minute = name[len(_LOGGED) :].rpartition("-")
            if name.startswith(_LOGGED) and minute != str(_this_minute()):
                more = system.remove_and_measure(name, run.descriptor)
                if more and what and "." not in what:
                    lines.append(f"{what}: and {more} more failures within a minute; see resctrl-mon-hook list")
    except OSError:
        pass
    return lines


def _this_minute() -> int:
    return int(system.boottime() / _MINUTE)


# --- A state that is not as it should be


class OddState:
    """What can be used of a state that is too large or invalid.

    A pod's author can make the annotations, and so the state, of any size (a preStop command of 900 kB is enough).
    Runtimes write id, status, pid and bundle before the annotations.
    """

    def __init__(self, text: bytes, *, is_large: bool) -> None:
        """Parse the text; of one that `is_large` only the beginning is there."""
        self._is_large = is_large
        self._problem: Exception | None = None
        self._bad_id: str | None = None
        # None if it is invalid.
        self.state: State | None = None
        found: object = None
        try:
            found = read_head(text.decode("utf-8", "replace")) if is_large else system.loads(text.decode())
            self.state = State.model_validate(found)
        except ValueError as error:
            self._problem = error
        known = found if isinstance(found, dict) else {}
        name, status = known.get("id"), known.get("status")
        if isinstance(name, str) and not names.is_container_id(name):
            self._bad_id = name
            text, name = name.encode("utf-8", "surrogatepass"), None  # the record is named by this
        # The container's ID, or a stable name for its record.
        self.name: str = name if isinstance(name, str) else UNNAMED + system.hash_of(text)
        self.status = status if isinstance(status, str) else None
        self.bundle = self.state.bundle if self.state is not None else None

    def explain(self, error: BaseException | None, patience: float, limit: int) -> BaseException:
        """Return the failure of a call with this state, which ended with an error, or for want of a whole state."""
        error = error or (self._problem if self._is_large else None)
        if self._bad_id is not None:
            why = f"{self._bad_id[:80]!r} is not a container ID"
        elif error is None:
            why = f"it did not end within {patience:.0f} seconds"
        elif isinstance(error, (OSError, ValueError)):
            why = explain_exception(error)
        else:
            return error
        cut = f"; it is larger than {limit} bytes, and only the beginning is used" if self._is_large else ""
        return HookError(Reason.BAD_STATE, "bad state", problem=f"no container state on stdin: {why}{cut}")


def read_head(text: str) -> dict[str, Any]:
    """Parse the beginning of a JSON object: its members up to the first incomplete one.

    Members of nested objects do not count. A value counts only if the text goes on after it, since a number might
    continue. `ociVersion` is not used, so its default is filled in.
    """
    found: dict[str, Any] = {"ociVersion": ""}
    text = system.cut_deep(text)
    at, before = _skip_white(text, 0), "{"
    try:
        while text[at : at + 1] == before:
            name, at = system.scan(text, _skip_white(text, at + 1))
            at = _skip_white(text, at)
            if not isinstance(name, str) or text[at : at + 1] != ":":
                break
            value, at = system.scan(text, _skip_white(text, at + 1))
            at, before = _skip_white(text, at), ","
            if text[at : at + 1] in (",", "}"):
                found[name] = value
    except (StopIteration, ValueError):
        pass
    return found


def find_annotations(state: State, limit: int) -> tuple[dict[str, str] | None, HookError]:
    """Return the annotations of a container whose state is too large, and a `bad_state` that says where they are from.

    They may be too large in the bundle, too. Then we ignore the filters: otherwise a tenant could escape monitoring by
    padding its annotations.
    """
    problem = f"its state is larger than {limit} bytes, and only the beginning is used"
    config = identity.read_config(state.bundle) if state.annotations is None else None
    if state.annotations is not None or config is not None:
        found = state.annotations if config is None else config.annotations
        return found or {}, HookError(Reason.BAD_STATE, problem)
    problem += ": its names are unknown, and no filter leaves it out"
    return None, HookError(Reason.BAD_STATE, problem, hint="the pod's author may have written that much on purpose")


def _skip_white(text: str, at: int) -> int:
    while text[at : at + 1] in _WHITE:
        at += 1
    return at
