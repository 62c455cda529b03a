# SPDX-License-Identifier: Apache-2.0
"""Checks of the run directory: records, failures, containers that run without a record, and the signs of `watch`."""

from __future__ import annotations

import os

from hook.base import cgroups, system
from hook.base.models import Failure, Index, ReconcileRecord, WatchRecord
from hook.base.text import who
from hook.doctor.finding import FAILURE, OK, WARNING, Finding, name_first
from hook.doctor.kernel import has_process_connector
from hook.doctor.site import names_hook
from hook.node import programs, runtimes
from hook.node.place import NAME
from hook.observe import snapshot
from hook.state.records import Records, name_unhooked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hook.doctor.site import Site

_OVERDUE = 300.0  # seconds: a timer runs it every minute
_SILENCE = 180.0  # seconds: watch renews its record every minute
_OFF = "off: what exec brings into containers is charged from the next reconcile on"


def check_records(site: Site) -> Iterator[Finding]:
    run_dir = site.options.run_dir
    if not os.path.isdir(run_dir):
        yield Finding(OK, "records", f"no {run_dir}: no hook has run since boot")
        return
    seen = snapshot.take_snapshot(site.options)
    if seen.is_full:
        remedy = f"free space or inodes there (df -h {run_dir}, df -i {run_dir}): until then containers run unmonitored"
        yield Finding(FAILURE, "records", f"the file system of {run_dir} is full", remedy)
    yield Finding(OK, "records", f"{len(seen.keys)} keys")
    if seen.unrecorded:
        found = f"at least {seen.unrecorded} failures since boot could not be recorded"
        yield Finding(WARNING, "failures", found, f"see journalctl -t {NAME}; some of these containers may still run")
    for broken in [*seen.unreadable, *seen.unreadable_failures]:
        yield Finding(WARNING, broken.file, broken.problem, f"run {NAME} reconcile")
    for condition in ("group missing", "recovering"):
        keys = [key.state.key for key in seen.keys if key.condition == condition]
        if keys:
            yield Finding(WARNING, "records", f"{condition}: {name_first(keys)}", f"run {NAME} reconcile")
    by_reason: dict[str, list[str]] = {}
    for failure in seen.failures:
        name = who(failure.container, failure.namespace, failure.pod, failure.name)
        by_reason.setdefault(failure.reason, []).append(name)
    for reason, containers in by_reason.items():
        found = f"{len(containers)} containers: {reason}: {name_first(containers)}"
        yield Finding(WARNING, "failures", found, f"see {NAME} list for details")


def check_containers(site: Site) -> Iterator[Finding]:
    """Report live containers without the hook, or with the hook but without a record."""
    states, problems = site.states
    with Records(site.options.run_dir) as records:
        recorded = {*records.names(Index), *records.names(Failure)}
    hooked = [state["id"] for state in states if names_hook(site, f"{state['bundle']}/config.json")]
    lost = [container for container in hooked if container not in recorded]
    unhooked = [it["id"] for it in states if it["id"] not in recorded and it["id"] not in hooked]
    yield Finding(OK, "containers", f"{len(states)} running, {len(hooked)} with the hook")
    if lost:
        remedy = f"run {NAME} reconcile --adopt, unless a filter or --monitor excludes them"
        yield Finding(
            WARNING,
            "containers",
            f"have the hook configured but no record in the run directory: {name_first(lost)}",
            remedy,
        )
    if unhooked:
        remedy = f"to monitor them, run {NAME} reconcile --adopt"
        yield Finding(WARNING, "containers", f"without the hook: {name_first(unhooked)}", remedy)
    for line in problems:
        yield Finding(
            WARNING, "containers", line, "fix the runtime: doctor and reconcile --adopt cannot see its containers"
        )


def check_lost_containers(site: Site) -> Iterator[Finding]:
    """Report live containers that their runtime no longer knows, for example because CRI-O was killed.

    Only if the runtimes know at least one recorded container. Otherwise their root directory is not one of ours.
    """
    bundles = {state["id"]: state["bundle"] for state in site.states[0]}
    live = {
        container: key.state
        for key in snapshot.take_snapshot(site.options).keys
        for container, member in key.state.members.items()
        if key.alive[container] and cgroups.is_own(member.cgroup, container)
    }
    if bundles.keys().isdisjoint(live):
        return
    newer, unanswered = runtimes.find_runtimes().find_states(live.keys() - bundles.keys())
    bundles.update({container: str(state["bundle"]) for container, state in newer.items()})
    for container, state in live.items():
        name = who(container, state.pod_namespace, state.pod_name, state.members[container].name)
        remedy = f"delete its pod, or kill its processes (see {NAME} show {container})"
        if container in unanswered:
            continue
        if container not in bundles:
            found = "its processes run, but no OCI runtime knows it"
            yield Finding(WARNING, "lost", f"{name}: {found}", remedy)
        elif not os.path.exists(f"{bundles[container]}/config.json"):
            found = f"its processes run, but its bundle is gone ({bundles[container]})"
            yield Finding(WARNING, "lost", f"{name}: {found}", remedy)


def check_reconcile(site: Site) -> Iterator[Finding]:
    """Report a reconcile that does not run, does not end, or fails."""
    with Records(site.options.run_dir) as records:
        seen = records.glance(ReconcileRecord)
    if seen is None:
        return
    remedy = f"run {NAME} reconcile; with the timer, see journalctl -u {NAME}-reconcile.service"
    age = system.unix_time() - (seen.ended_at or 0)
    if seen.ended_at is None:
        yield Finding(WARNING, "reconcile", "it has started since boot, but not ended", remedy)
    elif age > _OVERDUE:
        yield Finding(WARNING, "reconcile", f"it last ended {age:.0f} seconds ago", remedy)
    elif seen.failed:
        yield Finding(WARNING, "reconcile", f"{seen.failed} of its actions failed", remedy)
    else:
        yield Finding(OK, "reconcile", f"it last ended {age:.0f} seconds ago, after {seen.seconds:.1f} seconds")


def check_unhooked(site: Site) -> Iterator[Finding]:
    """Report the running containers without the hook that reconcile found."""
    seen = snapshot.take_snapshot(site.options).unhooked
    if seen is None:
        return
    names = name_unhooked(seen)
    if names:
        found = f"{len(names)} running containers never got the hook, as of {seen.since}: {name_first(names)}"
        remedy = (
            f"see hooks.d, runtimes and containerd above: does the hook-injector run, does the runtime read our JSON? "
            f"For containers older than the installation: {NAME} reconcile --adopt"
        )
        yield Finding(FAILURE, "unhooked", found, remedy)
    else:
        yield Finding(OK, "unhooked", f"none, as of {seen.since}")
    if seen.unchecked:
        found = f"could not check {seen.unchecked} containers without a record, as of {seen.since}"
        remedy = "their runtime did not answer, is not supported (see reconcile --adopt), or is not visible from here"
        yield Finding(WARNING, "unhooked", found, remedy)


# --- Whether `watch` runs where it should, and whether it can


def check_watch(site: Site) -> Iterator[Finding]:
    unit = os.path.basename(site.places.watch)
    is_running = _is_running(site)
    is_wanted = programs.has_systemd() and programs.run(["systemctl", "is-enabled", "--quiet", unit]).status == 0
    if is_running:
        yield Finding(OK, "watch", "running")
    elif not is_wanted:
        yield Finding(OK, "watch", _OFF)
    elif not has_process_connector():
        found = f"{unit} is enabled, but this kernel has no process connector, or this is not the host's network"
        remedy = f"use a kernel with CONFIG_PROC_EVENTS, or systemctl disable --now {unit}"
        yield Finding(WARNING, "watch", found, remedy)
    else:
        yield Finding(WARNING, "watch", f"{unit} is enabled but does not run", f"journalctl -u {unit}")


def _is_running(site: Site) -> bool:
    """Whether a watch has renewed its record lately, on the host or in the chart's pod. SIGTERM removes the record."""
    with Records(site.options.run_dir) as records:
        seen = records.glance(WatchRecord)
    return seen is not None and system.unix_time() - seen.alive_at < _SILENCE
