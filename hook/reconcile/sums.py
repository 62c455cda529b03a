# SPDX-License-Identifier: Apache-2.0
"""Keeps the sums of the history (`sums.json`) up to date, once a run, and saves what runs there.

Which crash each order survives: the lines are on the disk before the sums that have them, and the
sums are replaced whole, so that each line is either added up or behind the place up to which they
go. A power cut takes the records with /run. Then the runs that were saved at the last checkpoint
get their lines, before the sums forget them: killed in between, the next reconcile finds the lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from hook import counters, ending, formats, life_end, store, system, unmonitored
from hook.key import read_finals
from hook.line import format_written, list_owed, make_line, name_run
from hook.models import Failure, KeyState
from hook.node import files, lines, sums
from hook.node.lines import Job
from hook.node.models import RunProcess, SavedRun, SummedLine, Sums
from hook.node.records import Broken, read_state
from hook.node.sums import Ledger, Reading, Shrunk
from hook.validation import replace
from hook.words import explain_exception, format_count

if TYPE_CHECKING:
    from hook.context import Context

CHECKPOINT = 300
"""Seconds after which what runs is saved, by default."""
# Seconds by which it is saved earlier, since reconcile runs each minute, more or less.
_EARLIER = 5.0
_LOCK = "sums.lock"
_SECONDS = 10.0  # for lines; the next run goes on
_KEPT = (
    # Seconds for which each line that was added is kept: `metrics` may have read the record of its
    # run before.
    100.0
)
_OLD = 3600.0  # seconds: what ended so long before there were sums is no growth of a counter


def keep_sums(
    context: Context,
    states: Iterable[KeyState],
    labels: Collection[str] = (),
    checkpoint: float = CHECKPOINT,
) -> list[str]:
    """Bring the sums of the history up to date, by these labels of jobs;
    without any by those that they have.

    `states` are the keys on record. What runs is saved if the last checkpoint is so many seconds
    old; 0: never. Returns what is to be said of it. Raises HookError, OSError. Another reconcile
    that does this now is not waited for.
    """
    history = sums.find_history(context.options)
    if not history or not os.path.isdir(os.path.dirname(history)):
        return []
    descriptor = system.open_lock(_LOCK, context.run.descriptor)
    try:
        if not system.try_flock(descriptor):
            return []
        return _keep_sums(context, history, states, labels, checkpoint)
    finally:
        system.close(descriptor)


def _keep_sums(
    context: Context,
    history: str,
    states: Iterable[KeyState],
    labels: Collection[str],
    checkpoint: float,
) -> list[str]:
    former, said = _read(history)
    now = system.unix_time()
    try:
        ledger = _read_on(context, history, former, labels or None, now)
    except Shrunk as error:
        said.append(f"{error} is shorter than what was added up of it")
        former = None
        ledger = _read_on(context, history, former, labels or None, now)
    if former is None and (said or ledger.recent or ledger.namespaces):
        said.append(
            f"made from {format_count(len(lines.list_files(history)), 'file')} of the history"
        )
    if not ledger.is_whole:
        said.append("not all lines of the history are added up yet; the next run goes on")
    else:
        said += _write_lost(context, ledger, now)
        if checkpoint and not 0.0 <= now - ledger.saved_at < checkpoint - _EARLIER:
            _save_runs(context, ledger, now)
        _note_series(ledger, history, states, now)
        older = [*ledger.recent.items()][: -sums.MOST_RECENT]
        for run, line in older:
            if not (0.0 <= now - line.at < _KEPT or _is_on_record(context, run, line)):
                del ledger.recent[run]
    after = ledger.close()
    if after != former:
        sums.write(history, after)
    return said + ledger.problems


def _read(history: str) -> tuple[Sums | None, list[str]]:
    """Read the sums, or put those that are damaged aside; return them, and what is to be said."""
    try:
        return sums.read(history), []
    except ValueError as error:
        path = sums.locate(history)
        os.replace(path, path + ".damaged")
        return None, [
            f"it was damaged ({explain_exception(error)}), and is {sums.NAME}.damaged now"
        ]


def _read_on(
    context: Context, history: str, former: Sums | None, labels: Collection[str] | None, now: float
) -> Ledger:
    """Read the lines that are not added up yet."""
    deadline = system.monotonic() + _SECONDS
    if former is not None and former.is_whole:
        ledger = Ledger(history, former, labels)
        ledger.read(Reading(now, deadline, is_durable=True))
        return ledger
    # From the first line on. To keep what a later line may replace takes too much memory here.
    ledger = Ledger(history, former or Sums(repeated=sorted(sums.find_repeated(history))), labels)
    run, began = context.run, formats.format_utc(now)
    on_record = {*store.list_records(run, KeyState), *store.list_records(run, Failure)}

    def keeps(job: Job) -> bool:
        known = on_record.intersection(
            [job["key"], *(container["id"] for container in job["containers"])]
        )
        return bool(known) or job["id"] in ledger.repeated or job["end"] >= began

    ledger.read(Reading(0.0, deadline, keeps, formats.format_utc(now - _OLD), is_durable=True))
    return ledger


def _note_series(ledger: Ledger, history: str, states: Iterable[KeyState], now: float) -> None:
    """Note since when each series is known, also those of what runs."""
    for account in ledger.list_accounts():
        account.know(account.use, now)
    for state in states:
        if state.completed_at is None and state.history_file == history:
            events = {
                counter.rpartition("/")[2]
                for group in state.groups
                for counter in group.begin or ()
            }
            for account in ledger.get_accounts(state.pod_namespace, state.job_labels):
                account.know(filter(counters.is_cumulative, events), now)


# --- What runs, in case that its records are lost


def _save_runs(context: Context, ledger: Ledger, now: float) -> None:
    """Save what each run has used so far, as the line that it would have if it ended now."""
    boot, node = read_boot(), ending.name_node(context.options)
    if boot != ledger.boot:  # of processes of another boot nothing is left
        ledger.saved = {run: replace(saved, processes=[]) for run, saved in ledger.saved.items()}
    saved = {}
    for name in store.list_records(context.run, KeyState):
        state = context.run.glance(KeyState, name)
        if state is None or state.completed_at is not None or state.history_file != ledger.history:
            continue
        finals = read_finals(context, state)
        ended = [life_end.finish(group, finals.get(group.path)) for group in state.groups]
        left = life_end.leave(state, state.members, stops=False)
        run, processes = (
            name_run(state),
            [RunProcess(pid=m.pid, starttime=m.starttime) for m in state.members.values()],
        )
        for line in (
            make_line(left, ended, (system.boottime(), now), node)
            if run not in ledger.recent
            else ()
        ):
            saved[run] = SavedRun(key=state.key, line=line, processes=processes)
    # The others are lost, or cannot be read now: each stays until its line comes.
    ledger.saved.update(saved)
    ledger.saved_at, ledger.boot = now, boot


def _write_lost(context: Context, ledger: Ledger, now: float) -> list[str]:
    """Write the lines of the saved runs that are on no record any more,
    and whose processes are gone.
    """
    is_of_now = ledger.boot == read_boot()
    lost = [
        run
        for run, saved in ledger.saved.items()
        if _is_lost(context, run, saved, is_of_now=is_of_now)
    ]
    if not lost:
        return []
    # A hook that has ended one of them since the lines were read wrote its
    # line before the record went.
    ledger.read(Reading(now, is_durable=True))
    texts = [_mark(ledger.saved[run].line, now) for run in lost if run in ledger.saved]
    if not texts:
        return []
    try:
        ending.append_lines(ledger.history, texts)
    except OSError as error:
        what, why = (
            format_count(len(texts), "run") + " whose records were lost",
            ending.name_write_error(error),
        )
        raise ending.unwritten_error(what, ledger.history, why) from error
    ledger.read(Reading(now, is_durable=True))
    return [
        f"wrote the lines of {format_count(len(texts), 'run')} whose records were lost, as of the "
        "last checkpoint"
    ]


def _is_lost(context: Context, run: str, saved: SavedRun, *, is_of_now: bool) -> bool:
    if is_of_now and any(
        system.is_dead(process.pid, process.starttime) is not True for process in saved.processes
    ):
        return False
    return not _has_run(context, run, saved.key)


def _mark(line: str, now: float) -> str:
    """Mark a line: a part of each use is unknown."""
    job = json.loads(line)
    job["unknown"] = sorted({*job["unknown"], *job["use"]})
    job["written"] = format_written(now)
    return formats.dumps(job)


def read_boot() -> str:
    """Return what names this boot."""
    return files.read_text("/proc/sys/kernel/random/boot_id", 64).strip()


def _is_on_record(context: Context, run: str, line: SummedLine) -> bool:
    """Whether the run of a line is on record, so that a later line of it may come."""
    if line.container is not None:
        failure = context.run.glance(Failure, line.container)
        return failure is not None and unmonitored.name_run(failure) == run
    return _has_run(context, run, line.key)


def _has_run(context: Context, run: str, key: str) -> bool:
    """Whether a key has this run on record, or may have it: its record cannot be read."""
    state = read_state(context.run, key)
    if not isinstance(state, KeyState):
        return isinstance(state, Broken)
    owed = (text for waiting in list_owed(state) for text in waiting.lines)
    return name_run(state) == run or any(f'"{run}"' in text for text in owed)
