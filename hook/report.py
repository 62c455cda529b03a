# SPDX-License-Identifier: Apache-2.0
"""Reports a failure by three independent traces: a line to syslog, a line on stderr, and a record.

Also serves a call whose state is too large or invalid. Imported only in these cases.
"""

from __future__ import annotations

from hook import create, entry, identity, jsontext, names, poststop, system
from hook.errors import UNNAMED, HookError, Reason
from hook.explain import as_hook_error, explain_exception, explain_invalid, printable, unforeseen_error, who
from hook.models import Failure, State, ValidationError
from hook.store import RunDir, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hook.entry import Call
    from hook.identity import Container, Key
    from hook.models import Options

_IDENTIFIER = "resctrl-mon-hook"
_PRIORITY = 3 << 3 | 4  # LOG_DAEMON, LOG_WARNING: syslog(3)
_WHITE = frozenset(" \t\n\r")


# --- What a hook reports


def survive(error: BaseException, verb: str, words: list[str]) -> int:
    """Report and count an exception that escaped everything else; returns the exit status.

    The command line is all that is known of the call.
    """
    say(str(unforeseen_error(error)))
    try:
        RunDir(entry.parse(words)[0].run_dir).count_run(verb + "-failed")
    except Exception:  # noqa: BLE001, S110  the defect may be there
        pass
    return int(verb == "createRuntime" and "--strict" in words)


def report(call: Call, run: RunDir | None, error: BaseException) -> int:
    """Report that a container is not monitored; returns the exit status. A defect counts as any other failure."""
    if isinstance(error, (HookError, OSError)):
        error = as_hook_error("a file could not be read or written", error)
    else:
        error = unforeseen_error(error)
    run = leave_traces(call, run, error, is_monitored=False)
    complain(call, run, is_monitored=False)
    if run is not None:
        run.count_run(call.stage + "-failed")
    return 1 if call.options.strict and call.stage == "createRuntime" else 0


def complain(call: Call, run: RunDir | None, *, is_monitored: bool) -> None:
    """Report problems that stopped nothing: bad options, and damaged files that were handled."""
    for error in run.complaints if run is not None else []:
        _say_of(call, run, error)
    if not call.complaints:
        return
    hint = "ignored; see the hooks.d JSON, and `help hook`"
    usage = HookError(Reason.USAGE, "; ".join(call.complaints), hint=hint)
    if is_monitored:
        leave_traces(call, run, usage, is_monitored=True)
    else:
        _say_of(call, run, usage)


def say_no_resctrl(call: Call) -> int:
    """Log once per boot that resctrl is missing; each time, if the run directory cannot hold the mark."""
    run = _open_if_possible(call)
    if run is None or run.is_first("no-resctrl"):
        say(f"no {call.options.resctrl_root} here: nothing is monitored on this machine")
    complain(call, run, is_monitored=False)
    if run is not None:
        run.count_run(call.stage + "-done")
    return 0


def _open_if_possible(call: Call) -> RunDir | None:
    try:
        return RunDir(call.options.run_dir)
    except Exception:  # noqa: BLE001  then there is no record, only the two other traces
        return None


def leave_traces(call: Call, run: RunDir | None, error: HookError, *, is_monitored: bool) -> RunDir | None:
    """Report what is wrong with a container, by the three traces. Returns the run directory, if it can be opened."""
    run = run or _open_if_possible(call)
    _say_of(
        call, run, error, to_syslog=error.reason != Reason.NOT_MOUNTED or run is None or run.is_first("not-mounted")
    )
    if run is not None and call.stage == "poststop" and error.reason == Reason.BAD_STATE:
        poststop.forget_failure(run, call.name)  # the container goes, and its record with it
        return run
    key = guess_key(call.options, call.container) if call.container is not None else None
    failure = make_failure(error, call.stage, call.container or call.name, key, is_monitored=is_monitored)
    record(run, failure if call.container is not None else replace(failure, bundle=call.bundle))
    return run


def _say_of(call: Call, run: RunDir | None, error: HookError, *, to_syslog: bool = True) -> None:
    """Report a failure; to syslog, only the first ones a minute of its key and reason (damage.count_failure)."""
    pod = call.container.pod if call.container is not None else None
    if to_syslog and run is not None:
        try:
            from hook import damage

            # A pod's author has a container of another ID with each restart, and an invalid state has no name at all.
            key = pod.uid if pod is not None and pod.uid else UNNAMED if call.name.startswith(UNNAMED) else call.name
            to_syslog, counts = damage.count_failure(run, error.reason, key)
            for line in counts:
                log(line)
        except Exception:  # noqa: BLE001  as above
            to_syslog = True
    name = who(call.name, *((pod.namespace, pod.name, pod.container) if pod is not None else ()))
    say(f"{call.stage} {name}: {error.reason}: {error}", to_syslog=to_syslog)


def guess_key(options: Options, container: Container) -> Key | None:
    """Derive the key of a container that is not monitored, for its record.

    None: that fails, or the container's start time is unknown, so that /proc may not have shown its cgroup.
    """
    if container.starttime is None:
        return None
    try:
        return identity.derive_key(options.key, container.id, container.said, container.pod)
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
    """Write one line to syslog."""
    try:
        _send_to_syslog(printable(text))
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
    # A late poststop may fail beside the next life of the container, whose own failure stays on record.
    if failure.stage != "poststop" or not poststop.has_live_failure(run, failure.container):
        run.write(Failure, failure.container, failure, owner)


def make_failure(
    error: HookError, stage: str, subject: Container | str, key: Key | None = None, *, is_monitored: bool = False
) -> Failure:
    """Make the record of a failure, with all that reconcile needs to try again.

    `subject`: the container; if nothing is known of it, the name of the record.
    """
    fields: dict[str, Any] = {"container": subject}
    if not isinstance(subject, str):
        pod = subject.pod
        fields = {
            "container": names.container_of(subject.id),
            "bundle": subject.bundle,
            "pid": subject.pid or None,
            "starttime": subject.starttime,
            "namespace": pod.namespace,
            "pod": pod.name,
            "name": pod.container,
        }
    if key is not None:
        fields.update(key=key.name, kind=key.kind)
    return Failure(
        stage=stage,
        reason=error.reason,
        problem=printable(error.problem),
        tried=printable(error.tried),
        kernel=printable(error.kernel),
        hint=printable(error.hint),
        monitored=is_monitored,
        time=system.now_utc(),
        boottime=system.boottime(),
        **fields,
    )


def _send_to_syslog(line: str) -> None:
    """Send one datagram to /dev/log without blocking: if the log is full, it is lost, and no container waits.

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


# --- A state that is not as it should be


def serve_odd_state(verb: str, given: tuple[Options, list[str]], text: bytes, error: BaseException | None) -> int:
    """Serve a call whose state is larger than STDIN_LIMIT by its beginning, or report it. Returns the exit status.

    A pod's author can make the annotations, and so the state, of any size (a preStop command of 900 kB is enough).
    Runtimes write id, status, pid and bundle before the annotations. `text`: the first STDIN_LIMIT bytes of stdin.
    `error`: why the state is invalid; None: `text` is not all of it.
    """
    is_large = error is None and len(text) == entry.STDIN_LIMIT
    found: object = None
    call: Call | None = None
    too_large: HookError | None = None
    bundle = None
    try:
        found = read_head(text.decode("utf-8", "replace")) if is_large else jsontext.loads(text.decode())
        state = State.model_validate(found)
        if is_large:
            annotations: dict[str, str] | None = None
            if entry.name_stage(verb, state.status) == "createRuntime":
                annotations, too_large = find_annotations(state)
            call = entry.make_call(verb, given, state, annotations)
        bundle = state.bundle
    except (HookError, ValueError) as caught:
        error = error or (caught if is_large else None)
    if call is not None:
        return entry.serve_call(call, too_large)
    known = found if isinstance(found, dict) else {}
    stage = entry.name_stage(verb, known["status"]) if isinstance(known.get("status"), str) else verb
    name = known.get("id")
    if not isinstance(name, str):
        name = None
    elif not names.is_container_id(name):
        error = state_error(f"{name[:80]!r} is not a container ID")
        text, name = name.encode("utf-8", "surrogatepass"), None  # the record is named by it
    if name is None:
        import hashlib  # its library, OpenSSL's, is ten times as large as Python

        name = UNNAMED + hashlib.sha256(text).hexdigest()[:16]
    if error is None or isinstance(error, (OSError, ValueError)):
        error = state_error(_explain_state(error, is_large=is_large))
    return report(entry.Call(stage, given, name, bundle, None), None, error)


def state_error(problem: str) -> HookError:
    """`bad_state`: stdin has no valid state of a container."""
    hint = "a runtime that does not follow the OCI runtime specification, or the hook was started by hand"
    return HookError(Reason.BAD_STATE, problem, hint=hint)


def _explain_state(error: BaseException | None, *, is_large: bool) -> str:
    if error is None:
        return f"stdin did not end within {entry.STDIN_PATIENCE:.0f} seconds"
    if isinstance(error, OSError):
        return f"stdin cannot be read ({error})"
    why = explain_invalid(error.errors()) if isinstance(error, ValidationError) else error
    if is_large:
        return f"stdin is larger than {entry.STDIN_LIMIT} bytes, and that beginning lacks what has to be in it ({why})"
    return f"stdin is not an OCI container state ({why})"


def read_head(text: str) -> dict[str, Any]:
    """Parse the beginning of a JSON object: its members up to the first incomplete one.

    Members of nested objects do not count. A value counts only if the text goes on after it, since a number might
    continue. `ociVersion` is not used, so its default is filled in.
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


def find_annotations(state: State) -> tuple[dict[str, str] | None, HookError]:
    """The annotations of a container whose state is too large, and a `bad_state` that says where they are from.

    None: they are too large in the bundle, too. Then no filter leaves the container out: a large state is no way out.
    """
    problem = f"its state is larger than {entry.STDIN_LIMIT} bytes, and only the beginning is used"
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
