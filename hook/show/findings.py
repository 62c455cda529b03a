# SPDX-License-Identifier: Apache-2.0
"""The table of what is wrong on a node, as its snapshot shows it: `list` prints that,
and `doctor` also what to do.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hook.models import Failure
from hook.node import paths
from hook.node.records import find_job, name_unhooked
from hook.show import name_all, name_first, to_word
from hook.show.snapshot import Inventory
from hook.words import format_count, who

OK, WARNING, FAILURE = LEVELS = ("ok", "warning", "FAIL")


class Finding(NamedTuple):
    """The result of a check: what was checked, what was found, and what to do,
    which is empty if the level is ok.
    """

    level: str
    subject: str
    found: str
    remedy: str = ""


def name_failed(failure: Failure) -> str:
    """Name a container that is not monitored,
    or a process by the key of its job and its own name.
    """
    return who(failure.container, failure.namespace, failure.pod, failure.name or find_job(failure))


def _call(*words: str) -> str:
    return f"`{shlex.join([paths.NAME, *words])}`"


def list_findings(node: Inventory, call: Callable[..., str] = _call) -> Iterator[Finding]:
    """List what is wrong. `call` makes the command that a remedy names from its words."""
    for broken in node.unreadable:
        yield Finding(
            WARNING, "records", f"unreadable: {broken.file}: {broken.problem}", call("reconcile")
        )
    failed: dict[tuple[bool, str], list[str]] = {}
    for failure in node.failures:
        failed.setdefault((failure.monitored, failure.reason), []).append(name_failed(failure))
    for (is_monitored, reason), called in sorted(failed.items()):
        head = "monitored, with problems" if is_monitored else "not monitored"
        found = f"{head}: {to_word(reason)}: {name_all(called, 'container')}"
        yield Finding(
            WARNING, "failures", found, f"list unmonitored says why; then {call('reconcile')}"
        )
    if taken := [
        f"{key.name_member(container)} in {to_word(path)}"
        for key, container, path in node.list_taken()
    ]:
        found = f"taken by other tools, which count what they use: {name_all(taken, 'container')}"
        remedy = (
            "have that tool leave containers alone; once its group is removed, reconcile brings "
            "them back"
        )
        yield Finding(WARNING, "taken", found, remedy)
    yield from _list_of_reconcile(node, call)
    for owed in node.list_owed():
        found = (
            f"not in the history yet: {format_count(owed.lines, 'line')} for {owed.file}: "
            f"{owed.why}"
        )
        remedy = f"its directory must exist, be writable and have room; then {call('reconcile')}"
        yield Finding(WARNING, "history", found, remedy)
    if node.dropped_lines:
        found = (
            f"at least {format_count(node.dropped_lines, 'line')} of history dropped since boot: "
            "too many waited"
        )
        yield Finding(WARNING, "history", found, "they are lost; see that lines can be written")
    yield from list_missing(is_full=node.is_full, unrecorded=node.unrecorded)


def _list_of_reconcile(node: Inventory, call: Callable[..., str]) -> Iterator[Finding]:
    """List what the last reconcile found."""
    record, unhooked = node.reconciled, node.unhooked
    if record is not None and record.elsewhere:
        groups = [f"{to_word(path)}: {number}" for path, number in sorted(record.elsewhere.items())]
        found = (
            "threads in groups of other tools or in other ctrl_groups, as of reconcile: "
            f"{name_first(groups)}"
        )
        yield Finding(
            WARNING,
            "taken",
            found,
            "have what moved them leave containers alone, or move them back",
        )
    if record is not None and record.outside_total:
        called = {
            container: key.name_member(container)
            for key in node.keys
            for container in key.state.members
        }
        outside = name_first(
            f"{called.get(name, who(name))}: {number}" for name, number in record.outside.items()
        )
        found = (
            f"{format_count(record.outside_total, 'thread')} outside of their group, as of "
            f"reconcile: {outside}"
        )
        yield Finding(WARNING, "reconcile", found, f"{call('reconcile')} says why")
    if unhooked is None:
        return
    if never := name_unhooked(unhooked.containers):
        found = (
            f"never hooked, as of {unhooked.since} (see list unmonitored): "
            f"{name_all(never, 'container')}"
        )
        remedy = "does the runtime, or its NRI hook-injector, read our JSON? Older containers: "
        yield Finding(FAILURE, "unhooked", found, remedy + call("reconcile", "--adopt"))
    if unhooked.unchecked:
        found = (
            f"could not check {format_count(unhooked.unchecked, 'container')} without a record, "
            f"as of {unhooked.since}"
        )
        remedy = "their runtime did not answer, or is not supported (see reconcile --adopt)"
        yield Finding(WARNING, "unhooked", found, remedy)


def list_missing(*, is_full: bool, unrecorded: int) -> Iterator[Finding]:
    """List the reasons why failures may have no record."""
    if is_full:
        found = "the file system of the run directory is full (see df -h /run, df -i /run)"
        yield Finding(
            FAILURE,
            "records",
            f"more containers may be unmonitored: {found}",
            "free space or inodes there",
        )
    if unrecorded:
        found = f"at least {format_count(unrecorded, 'failure')} since boot could not be recorded"
        yield Finding(
            WARNING, "records", f"{found}: see journalctl -t {paths.NAME}", "see the causes there"
        )
