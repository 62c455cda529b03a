# SPDX-License-Identifier: Apache-2.0
"""Adds up what all keys of a node have used since its history began:
the counters by which Prometheus bills.

It is the sums that reconcile keeps, the lines behind them, and the records of what runs. The
records were read first: a run that has ended since then is counted by its line, and one whose line
has been read is not counted by its record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hook import counters, life_end, system
from hook.line import list_owed, name_run, sum_run
from hook.models import Options
from hook.node import lines, sums
from hook.node.lines import Job
from hook.node.models import SummedLine
from hook.node.sums import RUNS, Account, Ledger, Reading, Shrunk
from hook.show.snapshot import SeenKey, to_number

_SECONDS = 2.0  # for the lines that reconcile has not added up
_BEGIN = 60.0  # seconds for which a new series is 0
Samples = dict[str, float]
"""By event, and under RUNS the runs of which a part is unknown."""


class Bill(NamedTuple):
    """What is shown."""

    namespaces: dict[str, Samples]
    labels: dict[tuple[str, str], Samples]
    """By the name of a label and its value."""


def read_bill(options: Options, keys: Iterable[SeenKey]) -> Bill | None:
    """Add up; `keys` were read before. Return None while reconcile has not added up the history."""
    history = sums.find_history(options)
    try:
        former = sums.read(history) if history else None
        if former is None or not former.is_whole:
            return None
        ledger = Ledger(history, former)
        ledger.read(Reading(deadline=system.monotonic() + _SECONDS))
    except (OSError, ValueError, Shrunk):  # reconcile says why
        return None
    if not ledger.is_whole:
        return None
    for line in _list_unwritten(ledger, history, keys):
        for account in ledger.get_accounts(line.namespace, line.labels):
            account.add(line)
    now = system.unix_time()
    return Bill(
        {name: _show(account, now) for name, account in ledger.namespaces.items()},
        {
            (name, value): _show(account, now)
            for name, values in ledger.labels.items()
            for value, account in values.items()
        },
    )


def _list_unwritten(ledger: Ledger, history: str, keys: Iterable[SeenKey]) -> Iterator[SummedLine]:
    """List what runs have used that have no line in the files yet."""
    seen = set(ledger.recent)
    for key in keys:
        state = key.state
        seen.add(name_run(state))
        for waiting in list_owed(state):
            for job in _parse(waiting.lines if waiting.file == history else ()):
                seen.add(job["id"])
                if job["id"] not in ledger.recent:
                    yield ledger.describe(job)
        if (
            state.completed_at is None
            and state.history_file == history
            and name_run(state) not in ledger.recent
        ):
            now = {group.record.path: group.now for group in key.groups if group.now}
            known = sum_run(
                state, [life_end.finish(group, now.get(group.path)) for group in state.groups]
            )
            yield SummedLine(
                key=state.key,
                namespace=state.pod_namespace or "",
                labels=state.job_labels,
                # As a line has it, so that it does not fall at its end.
                use={
                    event: counters.format_number(round(value * counters.MILLION))
                    for event, value in known.items()
                },
            )

    # Their records are lost; reconcile writes their lines once their processes are gone.
    for job in _parse(saved.line for run, saved in ledger.saved.items() if run not in seen):
        yield ledger.describe(job)


def _parse(texts: Iterable[str]) -> Iterator[Job]:
    for text in texts:
        yield from filter(None, [lines.parse(text.encode("utf-8", "backslashreplace"))])


def _show(account: Account, now: float) -> Samples:
    """Return the samples of an account. increase() does not see the first value of a
    series, so it begins at 0.
    """
    values: dict[str, float | None] = {
        event: to_number(value) for event, value in account.use.items()
    }
    values[RUNS] = account.unknown_runs
    events = {*values, *account.since}
    return {
        event: _begin_at_0(values.get(event) or 0, account.since.get(event), now)
        for event in events
    }


def _begin_at_0(value: float, since: float | None, now: float) -> float:
    return 0 if since is None or 0 <= now - since < _BEGIN else value
