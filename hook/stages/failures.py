# SPDX-License-Identifier: Apache-2.0
"""The three traces of a failure: a line to syslog, a line on stderr, a record. None depends on the other two.

Imported when something failed.
"""

from __future__ import annotations

from hook.base import names, system
from hook.base.errors import HookError
from hook.base.explain import explain, known, unforeseen
from hook.base.models import Failure, ValidationError
from hook.base.reasons import UNNAMED, Reason
from hook.base.text import printable, who
from hook.stages import identity
from hook.stages.context import open_run_dir
from hook.state import lives

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import Options
    from hook.stages.entry import Call
    from hook.stages.identity import Container, Key
    from hook.state.store import RunDir

_IDENTIFIER = "resctrl-mon-hook"
_PRIORITY = 3 << 3 | 4  # LOG_DAEMON, LOG_WARNING: syslog(3)


# --- What a hook reports


def survive(error: BaseException) -> int:
    """Report what no other place has caught; returns the exit status."""
    say(str(unforeseen(error)))
    return 0


def report(call: Call, error: BaseException) -> int:
    """Report that a container is not monitored; returns the exit status."""
    if not isinstance(error, (HookError, OSError)):
        _report(call, unforeseen(error), is_monitored=False)
        return 0
    _report(call, known("a file could not be read or written", error), is_monitored=False)
    complain(call, is_monitored=False)
    if call.run_dir is not None:
        call.run_dir.count_run(call.stage + "-failed")
    return 1 if call.options.strict and call.stage == "createRuntime" else 0


def report_problem(call: Call, problem: HookError) -> None:
    """Report what is wrong with a container although it is monitored."""
    _report(call, problem, is_monitored=True)


def complain(call: Call, *, is_monitored: bool) -> None:
    """Report what was wrong but stopped nothing: bad options, and broken files that were dealt with."""
    for error in call.run_dir.complaints if call.run_dir is not None else []:
        _say_of(call, error)
    if not call.complaints:
        return
    hint = "ignored; see the hooks.d JSON, and --help"
    usage = HookError(Reason.USAGE, "; ".join(call.complaints), hint=hint)
    if is_monitored:
        report_problem(call, usage)
    else:
        _say_of(call, usage)


def say_once(call: Call, what: str, text: str) -> None:
    """Log one line per boot, as far as the run directory allows to remember it."""
    try:
        call.run_dir = call.run_dir or open_run_dir(call.options)
        is_first = call.run_dir.is_first(what)
    except HookError:
        is_first = True
    if is_first:
        say(text)


def of_state(call: Call, problem: ValueError | None) -> HookError:
    """`bad_state`: stdin holds no state of a container."""
    if call.unread is not None:
        text = f"stdin cannot be read ({call.unread})"
    elif not call.is_whole and len(call.text) < call.STDIN_LIMIT:
        text = f"stdin did not end within {call.STDIN_PATIENCE:.0f} seconds"
    elif not call.is_whole and isinstance(problem, ValidationError):
        text = f"stdin is larger than {call.STDIN_LIMIT} bytes, and that beginning lacks what has to be in it "
        text += f"({explain(problem.errors())})"
    elif isinstance(problem, ValidationError):
        text = f"stdin is not an OCI container state ({explain(problem.errors())})"
    elif problem is not None:
        text = f"stdin is not an OCI container state ({problem})"
    elif call.container_id is None:
        text = f"{call.text.decode('utf-8', 'replace')[:80]!r} is not a container ID"
    else:
        text = "the state of a container that is being created has no pid"
    hint = "a runtime that does not follow the OCI runtime specification, or the hook was started by hand"
    return HookError(Reason.BAD_STATE, text, hint=hint)


def _report(call: Call, error: HookError, *, is_monitored: bool) -> None:
    """Leave the three traces."""
    name = _record_name(call)
    to_syslog = True
    try:
        call.run_dir = call.run_dir or open_run_dir(call.options)
        to_syslog = error.reason != Reason.NOT_MOUNTED or call.run_dir.is_first("not-mounted")
    except Exception:  # noqa: BLE001, S110  then there is no record, but the two other traces
        pass
    _say_of(call, error, to_syslog=to_syslog)
    if call.run_dir is not None and call.stage == "poststop" and error.reason == Reason.BAD_STATE:
        call.run_dir.remove(Failure, name)  # the container goes, and its record with it
        return
    key = find_key(call.options, call.container) if call.container is not None else None
    failure = failure_of(error, call.stage, call.container or name, key, is_monitored=is_monitored)
    if call.container is None and call.bundle is not None:
        failure = lives.replace(failure, bundle=call.bundle)
    record(call.run_dir, failure)


def _say_of(call: Call, error: HookError, *, to_syslog: bool = True) -> None:
    """Report a failure; to syslog, only the first ones a minute of its reason (damage.count_failure)."""
    to_syslog = to_syslog and (call.run_dir is None or _may_log(call.run_dir, error.reason))
    say(f"{call.stage} {_who(call)}: {error.reason}: {error}", to_syslog=to_syslog)


def _who(call: Call) -> str:
    """Name the container for people."""
    pod = call.container.pod if call.container is not None else None
    return who(_record_name(call), *((pod.namespace, pod.name, pod.container) if pod is not None else ()))


def _may_log(run: RunDir, reason: str) -> bool:
    try:
        from hook.state import damage

        may_log, counts = damage.count_failure(run, reason)
        for line in counts:
            log(line)
    except Exception:  # noqa: BLE001  no trace depends on another one
        return True
    return may_log


def find_key(options: Options, container: Container) -> Key | None:
    """Find the key of a container that is not monitored, for its record.

    None: it cannot be derived, or could not be as long as /proc did not show the container.
    """
    if container.starttime is None:
        return None
    try:
        return identity.key_of(options.key, container.id, container.said, container.pod)
    except HookError:
        return None


def _record_name(call: Call) -> str:
    """Name the container's record: its ID, or where there is none a stable name that is safe in a path."""
    if call.container_id is not None:
        return call.container_id
    import hashlib  # loads a library that is ten times as large as Python

    return UNNAMED + hashlib.sha256(call.text).hexdigest()[:16]


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
    """Write one line to syslog."""
    try:
        _to_syslog(printable(text))
    except Exception:  # noqa: BLE001, S110  as above
        pass


def record(run: RunDir | None, failure: Failure) -> None:
    """Write the record that `list`, `doctor` and `metrics` show, if there is a run directory to hold it."""
    try:
        if run is not None:
            run.write(Failure, failure.container, failure)
    except Exception as error:  # noqa: BLE001  a full /run, for one: reported, and survived
        say(f"could not write the record of this failure: {error}")
        if run is not None:
            run.count_run("unrecorded")  # for `list`: a byte often fits where a record does not


def failure_of(
    error: HookError, stage: str, subject: Container | str, key: Key | None = None, *, is_monitored: bool = False
) -> Failure:
    """Make the record of a failure, with what is known of the container, for reconcile to try again.

    `subject`: the container, or the name of the record if no more is known.
    """
    container, name = (None, subject) if isinstance(subject, str) else (subject, names.container_of(subject.id))
    return Failure(
        container=name,
        stage=stage,
        reason=error.reason,
        problem=printable(error.problem),
        tried=printable(error.tried),
        kernel=printable(error.kernel),
        hint=printable(error.hint),
        monitored=is_monitored,
        time=system.now_utc(),
        boottime=system.boottime(),
        bundle=container.bundle if container is not None else None,
        pid=(container.pid or None) if container is not None else None,
        starttime=container.starttime if container is not None else None,
        key=key.name if key is not None else None,
        kind=key.kind if key is not None else None,
        namespace=container.pod.namespace if container is not None else None,
        pod=container.pod.name if container is not None else None,
        name=container.pod.container if container is not None else None,
    )


def _to_syslog(line: str) -> None:
    """One datagram to /dev/log that is dropped rather than waited for: a full log must not hold a container.

    Format: RFC 3164, as syslog(3) sends it.
    """
    import _socket

    stamp = system.syslog_time()
    datagram = f"<{_PRIORITY}>{stamp} {_IDENTIFIER}[{system.process_id()}]: {line}".encode()
    sender = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    try:
        sender.setblocking(False)
        sender.connect("/dev/log")
        sender.send(datagram, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
    finally:
        sender.close()
