# SPDX-License-Identifier: Apache-2.0
"""Reports each failure by three independent traces: syslog, stderr, and a record.

It limits how many go to syslog.

The core imports this only after a failure.

    logged-<reason>.<key>-<minute>  as many bytes as there were failures of this key
                                    (minutes on CLOCK_BOOTTIME)
    logged-<minute>               as many bytes as were logged
    logged-<reason>-<minute>      as many bytes as were not
"""

from __future__ import annotations

from hook import identity, names, rare, system
from hook.context import new_context
from hook.errors import UNNAMED, HookError, Reason
from hook.models import Failure
from hook.rare import as_hook_error
from hook.resctrl import Resctrl
from hook.store import RunDir
from hook.validation import replace
from hook.words import explain, explain_exception, printable, who

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from hook.context import Call, Context
    from hook.identity import Container, Key
    from hook.models import Options

_IDENTIFIER = "resctrl-mon-hook"
_PRIORITY = 3 << 3 | 4  # LOG_DAEMON, LOG_WARNING: syslog(3)
_MOST_OF_KEY = 10  # lines a minute in syslog, for each key and reason
_MOST_OF_NODE = 200  # lines a minute in syslog, for all of them
_LOGGED = "logged-"
_MINUTE = 60.0


# --- What a hook reports


def report_escaped(
    error: BaseException,
    verb: str,
    words: list[str],
    parse: Callable[[list[str]], tuple[Options, list[str]]],
) -> int:
    """Report and count an exception that escaped everything else; returns the exit status.

    The command line is all that is known of the call. `parse` reads its options.
    """
    write_line(str(explain(HookError(Reason.IO, "defect", error=error))))
    try:
        RunDir(parse(words)[0].run_dir).count_run(verb + "-failed")
    except Exception:  # noqa: BLE001, S110  the defect may be there
        pass
    return int(verb == "createRuntime" and "--strict" in words)


def report_failure(
    call: Call, run: RunDir | None, error: BaseException, problems: list[HookError]
) -> int:
    """Report that a container is not monitored; returns the exit status.

    A defect counts as any other failure.
    """
    failure = as_hook_error("a file could not be read or written", error)
    is_failure = call.container is None or not Resctrl(call.options.resctrl_root).is_gone(
        call.options.resctrl_root
    )
    if is_failure:
        run = write_traces(call, run, failure, is_monitored=False)
    elif run is None or is_first(
        run, "no-resctrl"
    ):  # each time, if the run directory cannot hold the mark
        write_line(f"no {call.options.resctrl_root} here: nothing is monitored on this machine")
    report_problems(call, run, problems, is_monitored=False)
    if run is not None:
        run.count_run(call.stage + ("-failed" if is_failure else "-done"))
    return int(is_failure and call.options.strict and call.stage == "createRuntime")


def report_problems(
    call: Call, run: RunDir | None, problems: list[HookError], *, is_monitored: bool
) -> None:
    """Report problems that stopped nothing: bad options, and damaged files that were handled."""
    for error in problems:
        _write_line_about(call, run, error)
    if not call.complaints:
        return
    hint = "ignored; see the hooks.d JSON, and `help hook`"
    usage = HookError(Reason.USAGE, "; ".join(call.complaints), hint=hint)
    if is_monitored:
        write_traces(call, run, usage, is_monitored=True)
    else:
        _write_line_about(call, run, usage)


def write_traces(
    call: Call, run: RunDir | None, error: HookError, *, is_monitored: bool
) -> RunDir | None:
    """Report what is wrong with a container, by the three traces.

    Returns the run directory, if it can be opened.
    """
    if run is None:
        try:
            run = RunDir(call.options.run_dir)
        except Exception:  # noqa: BLE001, S110  then there is no record, only the two other traces
            pass
    _write_line_about(call, run, error)
    if run is not None and call.stage == "poststop" and error.reason == Reason.BAD_STATE:
        if run.has(Failure, call.name):  # the container goes, and its record with it
            from hook import unmonitored

            unmonitored.forget_failure(_open(call, run), call.name)
    elif run is not None:
        key = guess_key(call.options, call.container) if call.container is not None else None
        failure = make_failure(
            error, call.stage, call.container or call.name, key, is_monitored=is_monitored
        )
        write_record(
            _open(call, run),
            failure if call.container is not None else replace(failure, bundle=call.bundle),
        )
    return run


def _open(call: Call, run: RunDir) -> Context:
    return new_context(Resctrl(call.options.resctrl_root), run, call.options)


def _write_line_about(call: Call, run: RunDir | None, error: HookError) -> None:
    pod = call.container.pod if call.container is not None else None
    # A pod's author has a container of another ID with each restart,
    # and an invalid state has no name at all.
    if pod is not None and pod.uid:
        key = pod.uid
    else:
        key = UNNAMED if call.name.startswith(UNNAMED) else call.name
    name = who(call.name, *((pod.namespace, pod.name, pod.container) if pod is not None else ()))
    write_line(
        f"{call.stage} {name}: {error.reason}: {explain(error)}", to_syslog=may_log(run, error, key)
    )


def may_log(run: RunDir | None, error: HookError, key: str) -> bool:
    """Return whether a failure goes to syslog:
    the first ones a minute of its key and reason do (count_failure).

    That resctrl is not mounted goes there once in a boot. This logs the counts of earlier minutes.
    """
    if run is None:
        return True
    try:
        if error.reason == Reason.NOT_MOUNTED:
            return is_first(run, "not-mounted")
        return count_failure(run, error.reason, key)
    except Exception:  # noqa: BLE001  as above
        return True


def guess_key(options: Options, container: Container) -> Key | None:
    """Derive the key of a container that is not monitored, for its record.

    Returns None if that fails.

    It does if the container's start time is unknown, so that /proc may not have shown its cgroup.
    """
    if container.starttime is None:
        return None
    try:
        return identity.derive_key(options.key, container.id, container.annotations, container.pod)
    except HookError:
        return None


# --- The traces


def write_line(text: str, *, to_syslog: bool = True) -> None:
    """Write one line to stderr, and one to syslog."""
    line = printable(text)
    try:
        rare.write_stderr(f"{_IDENTIFIER}: {line}".encode())
    except Exception:  # noqa: BLE001, S110  a trace that fails must not cost the other ones
        pass
    if to_syslog:
        send_to_syslog(line)


def send_to_syslog(text: str) -> None:
    """Send one line to syslog without blocking: if /dev/log is full, it is lost,
    and no container waits.

    Format: RFC 3164, as syslog(3) sends it.
    """
    try:
        import _socket

        stamp = rare.syslog_time()
        datagram = (
            f"<{_PRIORITY}>{stamp} {_IDENTIFIER}[{system.process_id()}]: {printable(text)}".encode()
        )
        sender = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        try:
            sender.setblocking(False)
            sender.connect("/dev/log")
            sender.send(datagram, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
        finally:
            sender.close()
    except Exception:  # noqa: BLE001, S110  as above
        pass


def write_record(context: Context, failure: Failure) -> None:
    """Write the record that `list`, `doctor` and `metrics` show."""
    run = context.run
    try:
        try:
            with run.lock(failure.container, system.monotonic() + rare.FAILURE_PATIENCE):
                _write_unless_live(context, failure)
        except (HookError, OSError):  # a full /run may have room for the record alone
            _write_unless_live(context, failure, owner=f"unlocked-{system.process_id()}")
    except Exception as error:  # noqa: BLE001  a full /run, for one: reported, and survived
        write_line(f"could not write the record of this failure: {explain_exception(error)}")
        run.count_run("unrecorded")  # for `list`: a byte often fits where a record does not


def _write_unless_live(context: Context, failure: Failure, owner: str = "") -> None:
    """Write the record.

    `owner` names the temporary file, which a writer without the lock shares with no other.
    """
    run, container = context.run, failure.container
    former = run.glance(Failure, container)
    process = failure.pid, failure.starttime
    is_other = (
        former is not None and former.pid is not None and (former.pid, former.starttime) != process
    )
    if is_other or failure.stage == "poststop":
        from hook import unmonitored

        is_live = unmonitored.has_live_failure(run, container)
        if is_other and not is_live:
            # A run of the same ID has ended, as Podman's do: it has its line before this record
            # takes its place.
            unmonitored.close(context, container, failure)
        if is_live and failure.stage == "poststop":
            # It is late, and the container has started again: that start's failure stays on record.
            return
    run.write(Failure, container, failure, owner)


def make_failure(
    error: HookError,
    stage: str,
    subject: Container | str,
    key: Key | None = None,
    *,
    is_monitored: bool = False,
) -> Failure:
    """Make the record of a failure, with all that reconcile needs to try again.

    `subject` is the container or, if nothing is known of that, the name of the record.
    """
    fields: dict[str, Any] = {name: printable(text) for name, text in vars(explain(error)).items()}
    if isinstance(subject, str):
        fields["container"] = subject
    else:
        pod = subject.pod
        fields.update(
            container=names.get_container_id(subject.id),
            bundle=subject.bundle,
            pid=subject.pid or None,
            starttime=subject.starttime,
            namespace=pod.namespace,
            pod=pod.name,
            name=pod.container,
            history_file=subject.history_file,
            job_labels=subject.job_labels,
        )
    if key is not None:
        fields["key"], fields["kind"] = key
    fields.update(time=rare.now_utc(), boottime=system.boottime())
    return Failure(stage=stage, reason=error.reason, monitored=is_monitored, **fields)


def is_first(run: RunDir, what: str) -> bool:
    """Whether `what` was not logged in this boot yet.

    Counts it in a file in /run, which is empty after a boot.
    """
    counted = system.try_call(rare.append_and_count, "said-" + what, ".", run.descriptor)
    return counted is None or counted[0] == 1


# --- The number of failures in a minute, so that the log gets the first ones of each key and
# reason, and then a count


def count_failure(run: RunDir, reason: str, key: str) -> bool:
    """Count a failure; returns whether to log it.

    The first one of a minute logs the counts of earlier minutes.

    One key cannot use up the lines of another, and all keys together have a limit, too, which also
    bounds the number of files. A failure is logged, too, if another process removed the count. No
    lock is needed: the position of an append is the failure's number. Raises OSError if it cannot
    be counted.
    """
    minute = _this_minute()
    if (system.try_call(rare.size, f"{_LOGGED}{minute}", run.descriptor) or 0) < _MOST_OF_NODE:
        number, is_kept = rare.append_and_count(
            f"{_LOGGED}{reason}.{key}-{minute}", ".", run.descriptor
        )
        if number <= _MOST_OF_KEY or not is_kept:
            number, _ = rare.append_and_count(f"{_LOGGED}{minute}", ".", run.descriptor)
            for line in sum_up_failures(run) if number == 1 else ():
                send_to_syslog(line)
            return True
    system.append(f"{_LOGGED}{reason}-{minute}", ".", run.descriptor)
    return False


def sum_up_failures(run: RunDir) -> list[str]:
    """Remove the counts of earlier minutes.

    Returns a line for each reason with failures that were not logged.
    """
    lines = []
    try:
        for name in system.list_directory(".", run.descriptor):
            what, _, minute = name[len(_LOGGED) :].rpartition("-")
            if name.startswith(_LOGGED) and minute != str(_this_minute()):
                more = rare.remove_and_measure(name, run.descriptor)
                if more and what and "." not in what:
                    lines.append(
                        f"{what}: and {more} more failures within a minute; see resctrl-mon-hook "
                        "list"
                    )
    except OSError:
        pass
    return lines


def _this_minute() -> int:
    return int(system.boottime() / _MINUTE)
