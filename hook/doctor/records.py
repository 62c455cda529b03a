# SPDX-License-Identifier: Apache-2.0
"""Checks of the run directory: records, failures, containers that run without a record, and the signs of `watch`."""

from __future__ import annotations

import os
from collections.abc import Iterator

from hook import cgroups, system
from hook.doctor import Finding, Site, failure, ok, warning
from hook.doctor.kernel import has_process_connector
from hook.explain import format_count, name_first, who
from hook.models import Failure, Index
from hook.node import files, hooksd, programs, runtimes
from hook.node.paths import NAME
from hook.node.records import Records, name_unhooked
from hook.show.snapshot import Inventory

_OVERDUE = 300.0  # seconds: a timer runs it every minute
_SILENCE = 180.0  # seconds: watch renews its record every minute


def check_records(site: Site) -> Iterator[Finding]:
    run_dir, again = site.options.run_dir, f"run {NAME} reconcile"
    if not os.path.isdir(run_dir):
        yield ok("records", f"no {run_dir}: no hook has run since boot")
        return
    seen = site.snapshot
    if seen.is_full:
        remedy = f"free space or inodes there (df -h {run_dir}, df -i {run_dir}): until then containers run unmonitored"
        yield failure("records", f"the file system of {run_dir} is full", remedy)
    yield ok("records", format_count(len(seen.keys), "key"))
    if seen.unrecorded:
        found = f"at least {format_count(seen.unrecorded, 'failure')} since boot could not be recorded"
        yield warning("failures", found, f"see journalctl -t {NAME}; some of these containers may still run")
    yield from _check_history(seen)
    for broken in seen.list_unreadable():
        yield warning(broken.file, broken.problem, again)
    for condition in ("group missing", "recovering"):
        if keys := [key.state.key for key in seen.keys if key.condition == condition]:
            yield warning("records", f"{condition}: {name_first(keys)}", again)
    if taken := seen.list_taken():
        called = [f"{key.name_member(it)} in {path}" for key, it, path in taken]
        found = f"{format_count(len(taken), 'container')} in groups of other tools: {name_first(called)}"
        remedy = "have that tool leave containers alone; after a rmdir of its group reconcile brings them back"
        yield warning("taken", found, remedy)
    by_reason: dict[str, list[str]] = {}
    for it in seen.failures:
        by_reason.setdefault(it.reason, []).append(who(it.container, it.namespace, it.pod, it.name))
    for reason, names in by_reason.items():
        found = f"{format_count(len(names), 'container')}: {reason}: {name_first(names)}"
        yield warning("failures", found, f"see {NAME} list for details")


def _check_history(seen: Inventory) -> Iterator[Finding]:
    for waiting in seen.list_owed():
        found = f"{format_count(waiting.lines, 'line')} wait to be written to {waiting.file}: {waiting.why}"
        remedy = f"its directory must exist, be writable and have room; then run {NAME} reconcile"
        yield warning("history", found, remedy)
    if seen.dropped_lines:
        found = f"at least {format_count(seen.dropped_lines, 'line')} dropped since boot: too many waited"
        yield warning("history", found, "what those jobs used is lost: their use was in the metrics while they ran")
    if seen.dropped_snapshots:
        found = f"{format_count(seen.dropped_snapshots, 'snapshot')} removed early since boot, to make room"
        remedy = "give the run directory's file system more room, or the hook a shorter --snapshot-ttl"
        yield warning("records", found, remedy)


def check_containers(site: Site) -> Iterator[Finding]:
    """Report live containers without the hook, or with the hook but without a record."""
    states, problems = site.states
    with Records(site.options.run_dir) as records:
        recorded = {*records.names(Index), *records.names(Failure)}
    hooked, unread = [], []
    for it in states:
        try:
            if site.calls_ours(hooksd.read_programs(f"{it.bundle}/config.json")):
                hooked.append(it.id)
        except files.Unreadable as error:
            unread += [] if error.is_missing else [it.id]
    yield ok("containers", f"{len(states)} running, {len(hooked)} with the hook")
    infra = {it.id for it in states if it.id not in recorded and runtimes.is_left_out(it)}
    if lost := [it for it in hooked if it not in recorded | infra]:
        found = f"have the hook configured but no record in the run directory: {name_first(lost)}"
        yield warning("containers", found, f"run {NAME} reconcile --adopt, unless a filter or --monitor excludes them")
    if unhooked := sorted({it.id for it in states} - recorded - {*hooked, *unread} - infra):
        remedy = f"to monitor them, run {NAME} reconcile --adopt"
        yield warning("containers", f"without the hook: {name_first(unhooked)}", remedy)
    if unread:
        found = f"cannot read the config.json of {name_first(unread)}"
        yield warning("containers", found, "see whether they have a record: resctrl-mon-hook list")
    for line in problems:
        yield warning("containers", line, "fix the runtime: doctor and reconcile --adopt cannot see its containers")


def check_lost_containers(site: Site) -> Iterator[Finding]:
    """Report live containers that their runtime no longer knows, for example because CRI-O was killed.

    Only if the runtimes know at least one recorded container. Otherwise their root directory is not one of ours.
    """
    bundles = {it.id: it.bundle for it in site.states[0]}
    live = {
        container: key.state
        for key in site.snapshot.keys
        for container, member in key.state.members.items()
        if key.alive[container] and cgroups.is_own(member.cgroup, container)
    }
    if bundles.keys().isdisjoint(live):
        return
    newer, unanswered = runtimes.find_runtimes().find_states(live.keys() - bundles.keys())
    bundles.update({container: it.bundle for container, it in newer.items()})
    for container in sorted(live.keys() - unanswered):
        bundle = bundles.get(container)
        if bundle is not None and os.path.exists(f"{bundle}/config.json"):
            continue
        state = live[container]
        name = who(container, state.pod_namespace, state.pod_name, state.members[container].name)
        why = "no OCI runtime knows it" if bundle is None else f"its bundle is gone ({bundle})"
        remedy = f"delete its pod, or kill its processes (see {NAME} show {container})"
        yield warning("lost", f"{name}: its processes run, but {why}", remedy)


def check_reconcile(site: Site) -> Iterator[Finding]:
    """Report a reconcile that does not run, does not end, or fails."""
    seen = site.snapshot.reconciled
    if seen is None:
        return
    age = system.unix_time() - (seen.ended_at or 0)
    remedy = f"run {NAME} reconcile; with the timer, see journalctl -u {NAME}-reconcile.service"
    if seen.ended_at is None:
        yield warning("reconcile", "it has started since boot, but not ended", remedy)
    elif age > _OVERDUE:
        yield warning("reconcile", f"it last ended {age:.0f} s ago", remedy)
    elif seen.failed:
        yield warning("reconcile", f"{seen.failed} of its actions failed", remedy)
    elif seen.unread:
        found = (
            f"it could not read {seen.unread} of the keys, cgroups and processes: exec may be outside its group there"
        )
        yield warning("reconcile", found, remedy)
    else:
        yield ok("reconcile", f"it last ended {age:.0f} s ago, after {seen.seconds:.1f} s")


def check_unhooked(site: Site) -> Iterator[Finding]:
    """Report the running containers without the hook that reconcile found."""
    seen = site.snapshot.unhooked
    if seen is None:
        return
    if names := name_unhooked(seen):
        number = format_count(len(names), "running container")
        found = f"{number} never got the hook, as of {seen.since}: {name_first(names)}"
        remedy = (
            "see what doctor finds in hooks.d, runtimes and containerd: does the hook-injector run, does the runtime "
            f"read our JSON? For containers older than the installation: {NAME} reconcile --adopt"
        )
        yield failure("unhooked", found, remedy)
    else:
        yield ok("unhooked", f"none, as of {seen.since}")
    if seen.unchecked:
        found = f"could not check {format_count(seen.unchecked, 'container')} without a record, as of {seen.since}"
        remedy = "their runtime did not answer, is not supported (see reconcile --adopt), or is not visible from here"
        yield warning("unhooked", found, remedy)


# --- `watch`: whether it runs, and whether it can


def check_watch(site: Site) -> Iterator[Finding]:
    unit = os.path.basename(site.places.watch)
    command = ["systemctl", "is-enabled", "--quiet", unit]
    is_enabled = programs.has_systemd() and programs.run_program(command).status == 0
    seen = site.snapshot.watched
    # On the host or in the chart's pod. SIGTERM removes the record.
    if seen is not None and system.unix_time() - seen.alive_at < _SILENCE:
        yield ok("watch", "running")
    elif not is_enabled:
        yield ok("watch", "off: what exec brings into containers is charged from the next reconcile on")
    elif not has_process_connector():
        found = f"{unit} is enabled, but this kernel has no process connector, or this is not the host's network"
        remedy = f"use a kernel with CONFIG_PROC_EVENTS, or systemctl disable --now {unit}"
        yield warning("watch", found, remedy)
    else:
        yield warning("watch", f"{unit} is enabled but does not run", f"journalctl -u {unit}")
