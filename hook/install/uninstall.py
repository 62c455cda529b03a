# SPDX-License-Identifier: Apache-2.0
"""Removes an installation in the reverse order: the JSON first, so that no new container gets the hook.

The hooks of a container are fixed when it is created. Existing containers still call the program when they end, and
with runc 1.3 and later their removal fails if it is missing. So the program is kept while a container may call it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from hook.base import procfs
from hook.base.errors import HookError, Reason
from hook.base.models import Options
from hook.install import steps
from hook.install.install import LEFT, LEFT_TIMER, plan_stop_of_left_timer
from hook.install.steps import Step, Taken, remove_file, run_command
from hook.node import config, door, place, programs, runtimes
from hook.node.door import Unreadable
from hook.node.hooksd import read_programs
from hook.node.place import NAME, Places
from hook.reconcile import run as reconcile
from hook.state.records import Records


class Callers(NamedTuple):
    """The containers that call the program when they end. `untold`: a line for each check that failed.

    `specs`: the base_runtime_specs that name it. Without the program, containerd starts no container with them.
    """

    containers: Sequence[str] = ()
    untold: Sequence[str] = ()
    specs: Sequence[str] = ()


class Removal(NamedTuple):
    """The steps taken. `kept`: the callers if the program was kept; `strange`: files of others, which were kept.

    `history`: the directory of the history, if it was kept; else empty.
    """

    taken: Taken
    kept: Callers | None
    strange: list[str]
    history: str


def uninstall(places: Places, options: Options, roots: Sequence[str] = (), *, force: bool, dry_run: bool) -> Removal:
    """Uninstall. `roots`: see runtimes.find_runtimes. Raises Refused, HookError."""
    if not (force or places.top):
        steps.refuse_others(places)
    if not places.top and os.path.isdir(options.run_dir) and not procfs.in_host_pid_namespace():
        # In another pid namespace live containers look dead, and their groups empty.
        raise HookError(Reason.DENIED, procfs.NOT_HOST_PIDS, hint=procfs.PID_HINT)
    with steps.lock_directory(places.at(places.program_dir)):
        strange = [places.at(path) for path in places.files() if places.is_foreign(path)]

        def take(planned: list[Step]) -> Taken:
            return steps.take_steps([it for it in planned if it.what not in strange], dry_run=dry_run)

        taken = take([remove_file(places.at(places.json(target))) for target in place.TARGETS])
        # Only now: a container whose creation began before the JSON was removed may have the hook.
        found = Callers() if force or places.top else find_callers(places, options, roots)
        program = places.at(places.program)
        is_kept = any(found) and os.path.lexists(program) and program not in strange
        taken += take(plan_left_timer(places, options) if is_kept else plan_rest(places, options))
        history = places.at(places.log_dir) if _has_history(places) else ""
    return Removal(taken, found if is_kept else None, strange, history)


def plan_left_timer(places: Places, options: Options) -> list[Step]:
    """Keep the timer as long as the program, to end the groups of live containers later.

    If a package removed its timer, start a transient one. It lasts until the next boot, which ends all containers.
    """
    if not programs.has_systemd() or os.path.exists(places.timer) or programs.has_transient(LEFT_TIMER):
        return []
    words = [f"--resctrl-root={options.resctrl_root}", f"--run-dir={options.run_dir}"]
    words.append(f"--group-prefix={options.group_prefix}")
    every = ("--on-active=60", "--on-unit-active=60")
    return [run_command("systemd-run", "--quiet", f"--unit={LEFT}", *every, places.program, "reconcile", *words)]


def plan_rest(places: Places, options: Options) -> list[Step]:
    """The steps after the last caller is gone."""
    here = not places.top and programs.has_systemd()
    active = (places.timer, places.watch, places.textfile_timer, places.metrics_service)
    units = [os.path.basename(path) for path in active if here and os.path.exists(path)]
    return [
        # Disable the units while they exist, so that systemd removes its links to them.
        *([run_command("systemctl", "disable", "--now", *units)] if units else []),
        *(plan_stop_of_left_timer() if here else []),
        *(remove_file(places.at(path)) for path in (*places.units, places.tmpfiles, places.conf)),
        *([] if places.is_foreign(places.logrotate) else [remove_file(places.at(places.logrotate))]),
        *([] if _has_history(places) else [steps.remove_directory(places.at(places.log_dir))]),
        *([steps.remove_directory(places.at(places.conf_dir))] if _has_only_our_conf(places) else []),
        *([run_command("systemctl", "daemon-reload")] if here else []),
        *([] if places.top else [end_groups(options)]),
        remove_file(places.at(places.link)),
        *map(remove_file, steps.list_bytecode(places.at(places.program))),
        *(remove_file(places.at(path)) for path in (places.program, places.owner)),
    ]


def _has_only_our_conf(places: Places) -> bool:
    """Whether the directory of the file of options has no other file."""
    directory = places.at(places.conf_dir)
    return {*door.list_if_there(directory)} <= {os.path.basename(places.conf)} and not places.is_foreign(places.conf)


def _has_history(places: Places) -> bool:
    """Whether the directory of the history has a file. The history is the administrator's to remove."""
    return bool(door.list_if_there(places.at(places.log_dir)))


def end_groups(options: Options) -> Step:
    """End the keys without a live member: no reconcile will run later, and each group holds an RMID."""

    def list_live_keys() -> set[str]:
        return set(_list_recorded(options).values())

    def do() -> str | None:
        outcomes = reconcile.repair(options, list_live_keys()).outcomes
        return "; ".join(f"{it.action}: {it.problem}" for it in outcomes if it.problem is not None) or None

    def is_done() -> bool:
        return not os.path.isdir(options.run_dir) or not reconcile.plan_repairs(options, list_live_keys()).outcomes

    return Step("end", "the groups without live containers", do, is_done)


def format_removal(removal: Removal) -> list[str]:
    """A line for each file that was kept, and why."""
    lines = [f"left: {path} was not installed by {NAME}" for path in removal.strange]
    lines += [f"left: {removal.history}, the history of what containers have used"] if removal.history else []
    kept = removal.kept
    if kept is None:
        return lines
    lines += [f"kept: container {container} calls the program when it ends" for container in kept.containers]
    lines += [f"kept: could not check for remaining users: {line}" for line in kept.untold]
    remedy = "remove that from its configuration and restart containerd"
    lines += [f"kept: base_runtime_spec {it} of containerd calls the program: {remedy}" for it in kept.specs]
    if programs.has_systemd():
        lines.append("kept: the timer, which ends lingering groups until the program is removed")
    if kept.specs:
        return [*lines, "then run uninstall again; with --force containerd can no longer start such containers"]
    remedy = "run uninstall again when they are gone, or use --force: some runtimes then fail once to remove them"
    return [*lines, remedy]


def removal_to_json(removal: Removal) -> dict[str, Any]:
    """The object that `uninstall --json` prints. `kept` is null if the program is gone."""
    return {
        "kept": removal.kept and removal.kept._asdict(),
        "left": removal.strange,
        "history": removal.history or None,
    }


# --- The remaining callers of the program


def find_callers(places: Places, options: Options, roots: Sequence[str] = ()) -> Callers:
    """Find the callers by the hooks in the config.json of each container that is not deleted.

    A container calls it when it ends or when it is deleted: CRI-O keeps an ended one until the pod goes. A recorded
    member that no runtime knows counts too. A member that a runtime knows counts only if it has the hook, because
    reconcile adopts containers without it.
    """
    names = {places.program, places.link}
    states, untold = runtimes.find_runtimes(roots).list_states(stopped=True)
    found = []
    for state in states:
        try:
            if names & read_programs(f"{state.bundle}/config.json"):
                found.append(state.id)
        except Unreadable as error:
            if os.path.isdir(state.bundle):  # otherwise it is gone by now
                untold.append(f"cannot read the config.json of container {state.id}: {error}")
    known = {state.id for state in states}
    specs, unclear = find_calling_specs(names)
    return Callers(sorted({*found, *(_list_recorded(options).keys() - known)}), [*untold, *unclear], specs)


def find_calling_specs(names: set[str], top: str = "") -> tuple[list[str], list[str]]:
    """The base_runtime_specs of containerd that call a program at one of these paths, and a line for each problem.

    `top`: the directory below which we see the program. A containerd in a container may see another file at that path.
    """
    found = config.read_containerd()
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
    with Records(options.run_dir) as records:
        members = [(name, it, state.key) for state in records.list_states() for name, it in state.members.items()]
    return {name: key for name, it, key in members if procfs.is_dead(it.pid, it.starttime) is not True}
