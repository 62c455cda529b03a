# SPDX-License-Identifier: Apache-2.0
"""The end of a failure's record, and of what ran unmonitored: a line, and a count by reason.

A bill without that line would look whole. The core imports this only where a failure is on record.
"""

from __future__ import annotations

from hook import counters, ending, formats, line, names, rare, system
from hook.errors import HookError, Reason
from hook.models import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.context import Context
    from hook.identity import Container
    from hook.store import RunDir

COUNTED = "unmonitored-"
"""Files in the run directory's `runs` begin so:
one byte for each run that ended unmonitored, by reason.
"""
_NEVER_RAN = Reason.TASK_GONE


def forget_failure(context: Context, container: str, process: Container | None = None) -> None:
    """Remove the record of a container's failure, unless it is of another process that may live.

    What ran unmonitored has its line in the history first. `process` is monitored now.
    """
    run = context.run
    try:
        # Under the lock of its writers: the container may start again and fail at this moment, and
        # that record stays.
        with run.lock(container, system.monotonic() + rare.FAILURE_PATIENCE):
            if not has_live_failure(run, container, process.pid if process is not None else None):
                close(context, container, process)
    except (HookError, OSError) as error:  # reconcile removes it
        run.complain(
            "the record of a failed start stays until its line of history can be written", error
        )


def has_live_failure(run: RunDir, container: str, pid: int | None = None) -> bool:
    """Whether a process other than `pid` that failed to be monitored under this ID may be alive."""
    try:
        failure = run.read(Failure, container)
    except ValueError:  # damaged, or of a newer version
        return False
    except OSError:  # reconcile removes it after a day
        return True
    if failure is None or failure.pid is None or failure.pid == pid:
        return False
    return system.is_dead(failure.pid, failure.starttime) is False


def close(context: Context, container: str, process: Container | Failure | None = None) -> None:
    """Remove the record of a container's failure, once its line is written.

    Call it under the lock of the container.

    `process` is one of this container that is monitored now, or has failed again: then its run goes
    on. Raises HookError if the line cannot be written; then the record stays.
    """
    failure = context.run.glance(Failure, container)
    reason = (
        failure.reason
        if failure is not None and _ran_unmonitored(context, failure, process)
        else None
    )
    if failure is not None and reason is not None and failure.history_file:
        try:
            ending.append_lines(failure.history_file, [formats.dumps(_describe(context, failure))])
        except OSError as error:
            what, why = f"that {container} ran unmonitored", ending.name_write_error(error)
            raise ending.unwritten_error(what, failure.history_file, why) from error
    # After the line: killed in between, it is written once more, with the same ID.
    context.run.remove(Failure, container)
    if reason is not None:
        # A record that is damaged may have any text there.
        context.run.count_run(COUNTED + (reason if names.is_container_id(reason) else Reason.IO))


def _ran_unmonitored(
    context: Context, failure: Failure, process: Container | Failure | None
) -> bool:
    """Whether a failure is that of a run which has ended, without having been monitored."""
    if failure.monitored or failure.stage == "poststop" or failure.reason == _NEVER_RAN:
        return False
    if (
        process is not None
        and failure.pid == process.pid
        and failure.starttime in (None, process.starttime)
    ):
        return False
    # With --strict the runtime has refused the container.
    return failure.kind == "job" or not context.options.strict


def name_run(failure: Failure) -> str:
    """Return the ID of a run that was not monitored, which its line has."""
    name = f"{failure.container} {failure.pid} {failure.starttime or failure.time}"
    return formats.hash_of(name.encode("utf-8", "replace"))


def _describe(context: Context, failure: Failure) -> dict[str, object]:
    """Describe a run of which each event that adds up is unknown:
    what the root group counts, this node has.
    """
    root = context.resctrl
    try:
        shown = root.counters(root.root) if root.is_mounted() else {}
    except HookError:
        shown = {}
    now, unix = system.boottime(), system.unix_time()
    began = failure.boottime if failure.starttime is None else failure.starttime / system.TICKS
    return {
        "version": 1,
        "id": name_run(failure),
        "node": ending.name_node(context.options),
        "written": line.format_written(unix),
        "kind": failure.kind or "container",
        "key": failure.key or failure.container,
        "namespace": failure.namespace,
        "pod": failure.pod,
        "labels": failure.job_labels,
        "containers": [{"id": failure.container, "name": failure.name}],
        "more_containers": 0,
        "begin": failure.time or None
        if began is None
        else formats.format_utc(unix - (now - began)),
        "end": formats.format_utc(unix),
        "seconds": None if began is None else round(max(now - began, 0.0), 3),
        "runs": 1,
        "use": {},
        "unknown": sorted(
            {counter.rpartition("/")[2] for counter in shown if counters.is_cumulative(counter)}
        ),
        "late_cpu_seconds": 0.0,
        "reason": failure.reason,
    }
