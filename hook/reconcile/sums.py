# SPDX-License-Identifier: Apache-2.0
"""Keeps the sums of the history (`sums.json`) up to date, once a run.

Which crash each order survives: the lines are on the disk before the sums that have them, and the sums are replaced
whole, so that each line is either added up or behind the place up to which they go.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from hook import counters, formats, life_end, system, unmonitored
from hook.context import Context
from hook.line import name_run
from hook.models import Failure, KeyState
from hook.node import lines, sums
from hook.node.lines import Job
from hook.node.models import SummedLine, Sums
from hook.node.records import Broken, read_state
from hook.node.sums import Ledger, Reading, Shrunk
from hook.words import explain_exception, format_count

_LOCK = "sums.lock"
_SECONDS = 10.0  # for lines; the next run goes on
_KEPT = (
    100.0  # seconds for which each line that was added is kept: `metrics` may have read the record of its run before
)
_OLD = 3600.0  # seconds: what ended so long before there were sums is no growth of a counter


def keep_sums(context: Context, states: Iterable[KeyState], labels: Collection[str] = ()) -> list[str]:
    """Bring the sums of the history up to date, by these labels of jobs; without any by those that they have.

    `states` are the keys on record. Returns what is to be said of it. Raises OSError. Another reconcile that does this
    now is not waited for.
    """
    history = sums.find_history(context.options)
    if not history or not os.path.isdir(os.path.dirname(history)):
        return []
    descriptor = system.open_lock(_LOCK, context.run.descriptor)
    try:
        return _keep_sums(context, history, states, labels) if system.try_flock(descriptor) else []
    finally:
        system.close(descriptor)


def _keep_sums(context: Context, history: str, states: Iterable[KeyState], labels: Collection[str]) -> list[str]:
    former, said = _read(history)
    now = system.unix_time()
    try:
        ledger = _read_on(context, history, former, labels or None, now)
    except Shrunk as error:
        said.append(f"{error} is shorter than what was added up of it")
        former = None
        ledger = _read_on(context, history, former, labels or None, now)
    if former is None and (said or ledger.recent or ledger.namespaces):
        said.append(f"made from {format_count(len(lines.list_files(history)), 'file')} of the history")
    if not ledger.is_whole:
        said.append("not all lines of the history are added up yet; the next run goes on")
    else:
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
        return None, [f"it was damaged ({explain_exception(error)}), and is {sums.NAME}.damaged now"]


def _read_on(context: Context, history: str, former: Sums | None, labels: Collection[str] | None, now: float) -> Ledger:
    """Read the lines that are not added up yet."""
    deadline = system.monotonic() + _SECONDS
    if former is not None and former.is_whole:
        ledger = Ledger(history, former, labels)
        ledger.read(Reading(now, deadline, is_durable=True))
        return ledger
    # From the first line on. To keep what a later line may replace takes too much memory here.
    ledger = Ledger(history, former or Sums(repeated=sorted(sums.find_repeated(history))), labels)
    run, began = context.run, formats.format_utc(now)
    on_record = {*run.list_names(KeyState), *run.list_names(Failure)}

    def keeps(job: Job) -> bool:
        known = on_record.intersection([job["key"], *(container["id"] for container in job["containers"])])
        return bool(known) or job["id"] in ledger.repeated or job["end"] >= began

    ledger.read(Reading(0.0, deadline, keeps, formats.format_utc(now - _OLD), is_durable=True))
    return ledger


def _note_series(ledger: Ledger, history: str, states: Iterable[KeyState], now: float) -> None:
    """Note since when each series is known, also those of what runs."""
    for account in ledger.list_accounts():
        account.know(account.use, now)
    for state in states:
        if state.completed_at is None and state.history_file == history:
            events = {counter.rpartition("/")[2] for group in state.groups for counter in group.begin or ()}
            for account in ledger.get_accounts(state.pod_namespace, state.job_labels):
                account.know(filter(counters.is_cumulative, events), now)


def _is_on_record(context: Context, run: str, line: SummedLine) -> bool:
    """Whether the run of a line is on record, so that a later line of it may come."""
    if line.container is not None:
        failure = context.run.glance(Failure, line.container)
        return failure is not None and unmonitored.name_run(failure) == run
    state = read_state(context.run, line.key)
    if not isinstance(state, KeyState):
        return isinstance(state, Broken)
    owed = (text for waiting in life_end.list_owed(state) for text in waiting.lines)
    return name_run(state) == run or any(f'"{run}"' in text for text in owed)
