# SPDX-License-Identifier: Apache-2.0
"""Removes an installation in the reverse order: the JSON first, so that no new container gets the hook.

The hooks of a container are fixed when it is created. Existing containers still call the program when they end, and
with runc 1.3 and later their removal fails if it is missing. So the program is kept while a container may call it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hook.base import procfs
from hook.base.errors import HookError
from hook.base.models import KeyState
from hook.base.reasons import Reason
from hook.install import file_steps, node_bytecode, owner
from hook.install.file_steps import Outcome, Remove, RemoveDirectory, Run, Step
from hook.install.install import LEFT, LEFT_TIMER, plan_stop_of_left_timer
from hook.node import containerd, door, machine, oci_runtimes
from hook.node.container_config import read_programs
from hook.node.door import Unreadable
from hook.node.paths import NAME, Places
from hook.reconcile import reconcile
from hook.state.records import Records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from hook.base.models import Options


@dataclass(frozen=True)
class Callers:
    """The containers that call the program when they end. `untold`: a line for each thing that was not found out.

    `specs`: the base_runtime_specs that name it. Without the program, containerd starts no container with them.
    """

    containers: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)
    specs: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.containers or self.untold or self.specs)


@dataclass(frozen=True)
class Result:
    """The steps taken. `kept`: the callers if the program was kept; `strange`: files of others, which were kept."""

    outcomes: list[Outcome]
    kept: Callers | None
    strange: list[str]


def run(places: Places, options: Options, roots: Sequence[str] = (), *, force: bool, dry_run: bool) -> Result:
    """Uninstall. `roots`: see oci_runtimes.list_states. Raises Refused, HookError."""
    if not (force or places.top):
        owner.refuse_others(places)
    if not places.top and os.path.isdir(options.run_dir) and not procfs.in_host_pid_namespace():
        # Here live containers would look dead, and their groups empty.
        raise HookError(Reason.DENIED, procfs.NOT_HOST_PIDS, hint=procfs.PID_HINT)
    with file_steps.lock_directory(places.at(places.program_dir)):
        strange = [path for path in places.files() if places.is_foreign(path)]
        done = file_steps.take_steps(_skip_foreign(plan_first(places), places, strange), dry_run=dry_run)
        # Only now: a container whose creation began before the JSON was removed may have the hook.
        found = Callers() if force or places.top else find_callers(places, options, roots)
        is_kept = bool(found) and os.path.lexists(places.at(places.program)) and places.program not in strange
        rest = plan_left_timer(places, options) if is_kept else plan_rest(places, options)
        done += file_steps.take_steps(_skip_foreign(rest, places, strange), dry_run=dry_run)
    return Result(done, found if is_kept else None, [places.at(path) for path in strange])


def plan_first(places: Places) -> list[Step]:
    """The steps that need no callers to be gone."""
    return [Remove(places.at(places.json(target))) for target in machine.TARGETS]


def plan_left_timer(places: Places, options: Options) -> list[Step]:
    """The timer stays with the program, to end the groups of live containers later.

    If a package removed its timer, start a transient one. It lasts until the next boot, which ends all containers.
    """
    if not machine.has_systemd() or os.path.exists(places.timer) or machine.has_transient(LEFT_TIMER):
        return []
    words = [f"--resctrl-root={options.resctrl_root}", f"--run-dir={options.run_dir}"]
    words.append(f"--group-prefix={options.group_prefix}")
    every = ("--on-active=60", "--on-unit-active=60")
    return [Run(("systemd-run", "--quiet", f"--unit={LEFT}", *every, places.program, "reconcile", *words))]


def plan_rest(places: Places, options: Options) -> list[Step]:
    """The steps after the last caller is gone."""
    here = not places.top and machine.has_systemd()
    active = (places.timer, places.watch, places.textfile_timer, places.metrics_service)
    units = [os.path.basename(path) for path in active if here and os.path.exists(path)]
    return [
        # Disable the units while they exist, so that systemd removes its links to them.
        *([Run(("systemctl", "disable", "--now", *units))] if units else []),
        *(plan_stop_of_left_timer() if here else []),
        *(Remove(places.at(path)) for path in places.units),
        *(Remove(places.at(path)) for path in (places.tmpfiles, places.conf)),
        *([RemoveDirectory(places.at(places.conf_dir))] if _has_only_our_conf(places) else []),
        *([Run(("systemctl", "daemon-reload"))] if here else []),
        *([] if places.top else [End(options)]),
        Remove(places.at(places.link)),
        *map(Remove, node_bytecode.list_files(places.at(places.program))),
        *(Remove(places.at(path)) for path in (places.program, places.chart_mark)),
    ]


def _has_only_our_conf(places: Places) -> bool:
    """Whether the directory of the file of options has no other file."""
    directory = places.at(places.conf_dir)
    names = set(door.list_names(directory)) if os.path.isdir(directory) else set()
    return names <= {os.path.basename(places.conf)} and not places.is_foreign(places.conf)


@dataclass(frozen=True)
class End(Step):
    """End the keys without a live member: no reconcile will run later, and each group holds an RMID."""

    options: Options
    verb = "end"

    @property
    def what(self) -> str:
        return "the groups without live containers"

    def is_done(self) -> bool:
        return (
            not os.path.isdir(self.options.run_dir)
            or not reconcile.plan_actions(self.options, self._list_live_keys()).outcomes
        )

    def do(self) -> str | None:
        outcomes = reconcile.run(self.options, self._list_live_keys()).outcomes
        return "; ".join(f"{it.action}: {it.problem}" for it in outcomes if it.problem is not None) or None

    def _list_live_keys(self) -> set[str]:
        return set(_list_recorded(self.options).values())


def _skip_foreign(planned: list[Step], places: Places, strange: list[str]) -> list[Step]:
    theirs = {places.at(path) for path in strange}
    return [step for step in planned if step.what not in theirs]


def format_result(result: Result) -> list[str]:
    """A line for each file that was kept, and why."""
    lines = [f"left: {path} was not installed by {NAME}" for path in result.strange]
    if result.kept is None:
        return lines
    lines += [f"kept: container {container} calls the program when it ends" for container in result.kept.containers]
    lines += [f"kept: could not check for remaining users: {line}" for line in result.kept.untold]
    remedy = "remove that from its configuration and restart containerd"
    lines += [f"kept: base_runtime_spec {it} of containerd calls the program: {remedy}" for it in result.kept.specs]
    lines += (
        ["kept: the timer, which ends lingering groups until the program is removed"] if machine.has_systemd() else []
    )
    if result.kept.specs:
        return [*lines, "then run uninstall again; with --force containerd can no longer start such containers"]
    return [
        *lines,
        "run uninstall again when they are gone, or use --force: some runtimes then fail once to remove them",
    ]


def to_json(result: Result) -> dict[str, Any]:
    """The same as an object for JSON. `kept` is null if the program is gone."""
    return {"kept": result.kept and vars(result.kept), "left": result.strange}


# --- Who still calls the program


def find_callers(places: Places, options: Options, roots: Sequence[str] = ()) -> Callers:
    """The callers, by the hooks in the config.json of each container that is not deleted.

    A container calls it when it ends or when it is deleted: CRI-O keeps an ended one until the pod goes. A recorded
    member that no runtime knows counts too. A member that a runtime knows counts only if it has the hook, because
    reconcile adopts containers without it.
    """
    names = {places.program, places.link}
    states, untold = oci_runtimes.list_states(further=roots, stopped=True)
    found = []
    for state in states:
        try:
            if names & read_programs(f"{state['bundle']}/config.json"):
                found.append(state["id"])
        except Unreadable as error:
            if os.path.isdir(state["bundle"]):  # otherwise it is gone by now
                untold.append(f"cannot read the config.json of container {state['id']}: {error}")
    known = {state["id"] for state in states}
    specs, unclear = find_calling_specs(names)
    return Callers(sorted({*found, *(_list_recorded(options).keys() - known)}), [*untold, *unclear], specs)


def find_calling_specs(names: set[str], top: str = "") -> tuple[list[str], list[str]]:
    """The base_runtime_specs of containerd that call a program at one of these paths, and a line for each problem.

    `top`: the directory below which we see the program. A containerd in a container may see another file at that path.
    """
    found = containerd.read_configuration()
    calling, untold = [], list(found.unclear)
    for spec in found.specs:
        try:
            called = names & read_programs(spec.path, spec.files)
        except Unreadable as error:
            if not error.is_missing:  # else containerd starts no container with it
                untold.append(f"cannot read {spec.path}: {error.why}")
            continue
        if any(not spec.files.root or spec.files.is_same(name, top + name) for name in called):
            calling.append(spec.path)
    return calling, untold


def _list_recorded(options: Options) -> dict[str, str]:
    """The recorded members that are not known to be dead, and the key of each."""
    found: dict[str, str] = {}
    with Records(options.run_dir) as records:
        for key in records.recorded():
            state = records.state(key)
            if isinstance(state, KeyState):
                members = state.members.items()
                found.update({it: key for it, who in members if procfs.is_dead(who.pid, who.starttime) is not True})
    return found
