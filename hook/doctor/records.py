"""Checks of the run directory: records, failures, and containers that run without a record."""

from __future__ import annotations

import os

from hook.base import cgroups
from hook.base.text import printable
from hook.doctor.finding import FAILURE, OK, WARNING, Finding, name_first
from hook.doctor.site import names_hook
from hook.host import oci_runtimes
from hook.host.paths import NAME
from hook.observe import snapshot
from hook.state.records import Records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hook.doctor.site import Site


def check_records(site: Site) -> Iterator[Finding]:
    run_dir = site.options.run_dir
    if not os.path.isdir(run_dir):
        yield Finding(OK, "records", f"no {run_dir} yet: no hook has run since the boot")
        return
    room = os.statvfs(run_dir)
    if room.f_files and (room.f_favail < 1000 or room.f_bavail * room.f_frsize < 1 << 20):
        yield Finding(
            FAILURE, "records", f"the file system of {run_dir} is full", "containers run unmonitored: make room"
        )
    seen = snapshot.look(site.options)
    yield Finding(OK, "records", f"{len(seen.keys)} keys")
    for broken in [*seen.unreadable, *seen.unreadable_failures]:
        yield Finding(WARNING, broken.file, broken.problem, f"{NAME} reconcile")
    for condition in ("group missing", "recovering"):
        keys = [key.state.key for key in seen.keys if key.condition == condition]
        if keys:
            yield Finding(WARNING, "records", f"{condition}: {name_first(keys)}", f"{NAME} reconcile")
    by_reason: dict[str, list[str]] = {}
    for failure in seen.failures:
        by_reason.setdefault(failure.reason, []).append(failure.container)
    for reason, containers in by_reason.items():
        found = f"{len(containers)} containers: {reason}: {name_first(containers)}"
        yield Finding(WARNING, "failures", found, f"{NAME} list tells more of each")


def check_containers(site: Site) -> Iterator[Finding]:
    """Live containers without the hook, or with it and on no record."""
    states, complaints = site.states
    with Records(site.options.run_dir) as records:
        recorded = {*records.indexed(), *records.failed()}
    hooked = [state["id"] for state in states if names_hook(site, f"{state['bundle']}/config.json")]
    lost = [container for container in hooked if container not in recorded]
    unhooked = [it["id"] for it in states if it["id"] not in recorded and it["id"] not in hooked]
    yield Finding(OK, "containers", f"{len(states)} run, {len(hooked)} of them with the hook")
    if lost:
        remedy = f"filters and --monitor leave some out on purpose; else {NAME} reconcile --adopt"
        yield Finding(WARNING, "containers", f"on no record, though they have the hook: {name_first(lost)}", remedy)
    if unhooked:
        remedy = f"{NAME} reconcile --adopt, if they are meant to be monitored; doctor --inject=FILE tells why not"
        yield Finding(WARNING, "containers", f"without the hook: {name_first(unhooked)}", remedy)
    for line in complaints:
        yield Finding(WARNING, "containers", line, "its containers cannot be looked at, by reconcile --adopt neither")


def check_lost_containers(site: Site) -> Iterator[Finding]:
    """Containers on record that live, though their runtime has lost them: CRI-O was killed, say.

    Told by the containers that runtimes do know of: where they know of none, they keep them where nobody looks.
    """
    bundles = {state["id"]: state["bundle"] for state in site.states[0]}
    live = {
        container: key.state
        for key in snapshot.look(site.options).keys
        for container, member in key.state.members.items()
        if key.dead[container] is False and cgroups.is_own(member.cgroup, container)
    }
    if bundles.keys().isdisjoint(live):
        return
    newer, untold = oci_runtimes.find_states(live.keys() - bundles.keys())
    bundles.update({container: str(state["bundle"]) for container, state in newer.items()})
    for container, state in live.items():
        name = f"{state.pod_namespace}/{state.pod_name} ({container[:12]})" if state.pod_name else container[:12]
        remedy = f"delete its pod, or end its processes by hand: {NAME} show {container}"
        if container in untold:
            continue
        if container not in bundles:
            found = "its processes live, and no OCI runtime knows it"
            yield Finding(WARNING, "lost", f"{printable(name)}: {found}", remedy)
        elif not os.path.exists(f"{bundles[container]}/config.json"):
            found = f"its processes live, and its bundle is gone ({bundles[container]})"
            yield Finding(WARNING, "lost", f"{printable(name)}: {found}", remedy)


def check_unhooked(site: Site) -> Iterator[Finding]:
    """What reconcile found of containers that run and were never hooked."""
    seen = snapshot.look(site.options).unhooked
    if seen is None:
        return
    names = seen.names()
    if names:
        found = f"{len(names)} containers run and were never hooked, as of {seen.since}: {name_first(names)}"
        remedy = (
            f"see hooks.d, runtimes and containerd above: does the hook-injector run, does the runtime read our JSON? "
            f"Containers from before the install: {NAME} reconcile --adopt"
        )
        yield Finding(FAILURE, "unhooked", found, remedy)
    else:
        yield Finding(OK, "unhooked", f"none, as of {seen.since}")
    if seen.unchecked:
        found = f"{seen.unchecked} containers without a record could not be checked, as of {seen.since}"
        remedy = "their runtime did not answer, is none of those in README (--adopt), or cannot be seen from here"
        yield Finding(WARNING, "unhooked", found, remedy)
