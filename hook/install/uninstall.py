"""Takes away what install put in place, in the reverse order: the JSON first, so that no new container is hooked.

The hooks of a container are fixed when it is created: the ones that are there still call the program when they end,
and with runc 1.3 and later a hook that is missing then fails their removal. So it stays as long as it is called.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field

from hook.base import procfs
from hook.base.errors import HookError
from hook.base.models import KeyState
from hook.base.reasons import Reason
from hook.host import containerd, machine, oci_runtimes
from hook.host.paths import NAME, Places
from hook.install import file_steps, node_bytecode, owner
from hook.install.file_steps import Outcome, Remove, RemoveDirectory, Run, Step
from hook.install.install import LEFT, LEFT_TIMER, stop_left_timer
from hook.reconcile import reconcile
from hook.state.records import Records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from hook.base.models import Options


@dataclass(frozen=True)
class Callers:
    """The containers that call the program when they end. `untold`: a line on each thing that was not found out.

    `specs`: the files by which containerd has it called for each new container, which would fail without it.
    """

    containers: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)
    specs: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.containers or self.untold or self.specs)


@dataclass(frozen=True)
class Result:
    """What was done. `kept` is not None if the program is still called; `strange`: files of others, which stay."""

    outcomes: list[Outcome]
    kept: Callers | None
    strange: list[str]


def run(places: Places, options: Options, roots: Sequence[str] = (), *, force: bool, dry_run: bool) -> Result:
    """Uninstall. `roots`: see runtimes.states. Raises Refused, HookError."""
    if not (force or places.top):
        owner.refuse_others(places)
    if not places.top and os.path.isdir(options.run_dir) and not procfs.in_host_pid_namespace():
        # Whoever still calls the program would look dead, and the groups of the living empty.
        raise HookError(Reason.DENIED, procfs.NOT_HOST_PIDS, hint=procfs.PID_HINT)
    with file_steps.alone(places.at(places.program_dir)):
        strange = [path for path in places.files() if places.is_strange(path)]
        done = file_steps.take(_without(plan(places), places, strange), dry_run=dry_run)
        # Looked at only now: a container that was being created until the JSON went may have been given the hook.
        found = Callers() if force or places.top else callers(places, options, roots)
        is_kept = bool(found) and os.path.lexists(places.at(places.program)) and places.program not in strange
        rest = leave_timer(places, options) if is_kept else plan_of_rest(places, options)
        done += file_steps.take(_without(rest, places, strange), dry_run=dry_run)
    return Result(done, found if is_kept else None, [places.at(path) for path in strange])


def plan(places: Places) -> list[Step]:
    """What goes at once."""
    return [Remove(places.at(places.json(target))) for target in machine.TARGETS]


def leave_timer(places: Places, options: Options) -> list[Step]:
    """The timer stays as long as the program: groups of the containers that live may linger, and it ends them.

    A package takes its timer along; then there is one until the next boot, which ends all containers as well.
    """
    if not machine.has_systemd() or os.path.exists(places.timer) or machine.has_transient(LEFT_TIMER):
        return []
    words = [f"--resctrl-root={options.resctrl_root}", f"--run-dir={options.run_dir}"]
    words.append(f"--group-prefix={options.group_prefix}")
    every = ("--on-active=60", "--on-unit-active=60")
    return [Run(("systemd-run", "--quiet", f"--unit={LEFT}", *every, places.program, "reconcile", *words))]


def plan_of_rest(places: Places, options: Options) -> list[Step]:
    """What goes once nobody calls the program."""
    here = not places.top and machine.has_systemd()
    timer = os.path.basename(places.timer)
    return [
        # Disabled while its unit is there: systemd takes away its own link to it.
        *([Run(("systemctl", "disable", "--now", timer))] if here and os.path.exists(places.timer) else []),
        *(stop_left_timer() if here else []),
        *(Remove(places.at(path)) for path in (places.timer, places.service, places.tmpfiles, places.conf)),
        *([RemoveDirectory(places.at(places.conf_dir))] if _is_ours_alone(places) else []),
        *([Run(("systemctl", "daemon-reload"))] if here else []),
        *([] if places.top else [End(options)]),
        Remove(places.at(places.link)),
        *map(Remove, node_bytecode.files_of(places.at(places.program))),
        *(Remove(places.at(path)) for path in (places.program, places.chart_mark)),
    ]


def _is_ours_alone(places: Places) -> bool:
    """Whether the directory of the options holds nothing else."""
    directory = places.at(places.conf_dir)
    names = set(os.listdir(directory)) if os.path.isdir(directory) else set()
    return names <= {os.path.basename(places.conf)} and not places.is_strange(places.conf)


@dataclass(frozen=True)
class End(Step):
    """The groups of keys without a live member are ended: nobody would do that later, and each holds an RMID."""

    options: Options
    verb = "end"

    @property
    def what(self) -> str:
        return "the groups that nobody is in any more"

    def is_done(self) -> bool:
        return not os.path.isdir(self.options.run_dir) or not reconcile.planned(self.options, self._live()).outcomes

    def do(self) -> str | None:
        outcomes = reconcile.run(self.options, self._live()).outcomes
        return "; ".join(f"{it.action}: {it.problem}" for it in outcomes if it.problem is not None) or None

    def _live(self) -> set[str]:
        return set(_recorded(self.options).values())


def _without(planned: list[Step], places: Places, strange: list[str]) -> list[Step]:
    theirs = {places.at(path) for path in strange}
    return [step for step in planned if step.what not in theirs]


def told(result: Result) -> list[str]:
    """What is not done, and why, a line each."""
    lines = [f"left: {path} is not of {NAME}" for path in result.strange]
    if result.kept is None:
        return lines
    lines += [f"kept for container {container}, which calls it when it ends" for container in result.kept.containers]
    lines += [f"kept, since this cannot be told: {line}" for line in result.kept.untold]
    remedy = "take that out of its configuration and restart it"
    lines += [f"kept for containerd, whose base_runtime_spec {it} calls it: {remedy}" for it in result.kept.specs]
    lines += ["the timer stays until the program is removed, to end lingering groups"] if machine.has_systemd() else []
    if result.kept.specs:
        return [*lines, "uninstall again after that; with --force containerd starts no such container any more"]
    return [*lines, "uninstall again once they are gone, or with --force: some runtimes then fail to remove them once"]


def objects(result: Result) -> dict[str, Any]:
    """The same for programs. `kept` is null if the program is gone."""
    return {"kept": result.kept and vars(result.kept), "left": result.strange}


# --- Who still calls it


def callers(places: Places, options: Options, roots: Sequence[str] = ()) -> Callers:
    """Who calls the program, by the list of hooks in the configuration of each container that is not deleted yet.

    Its end calls it, or its deletion: CRI-O keeps what has ended until the pod goes. A member on record that no runtime
    tells of counts as well. One that is told of need not: reconcile brings in containers that were created without the
    hook.
    """
    names = {places.program, places.link}
    states, untold = oci_runtimes.states(further=roots, stopped=True)
    found = []
    for state in states:
        try:
            if names & programs_in(f"{state['bundle']}/config.json"):
                found.append(state["id"])
        except (OSError, ValueError) as error:
            if os.path.isdir(state["bundle"]):  # else it is gone meanwhile
                untold.append(f"{state['id']}: its configuration cannot be read: {error}")
    known = {state["id"] for state in states}
    specs, unclear = specs_calling(names)
    return Callers(sorted({*found, *(_recorded(options).keys() - known)}), [*untold, *unclear], specs)


def specs_calling(names: set[str], top: str = "") -> tuple[list[str], list[str]]:
    """The base_runtime_specs of containerd that call a program of these names, and a line on what was not found out.

    `top`: below which the program lies for us. A containerd in a container may have another file of the same name.
    """
    found = containerd.look()
    calling, untold = [], list(found.unclear)
    for spec in found.specs:
        try:
            called = names & programs_in(spec.place)
        except FileNotFoundError:
            continue  # containerd starts no container with it
        except (OSError, ValueError) as error:
            untold.append(f"{spec.path} cannot be read: {error}")
            continue
        if any(not spec.view.root or spec.view.is_same(name, top + name) for name in called):
            calling.append(spec.path)
    return calling, untold


def programs_in(path: str) -> set[str]:
    """The programs of all hooks in a specification of containers. OSError, ValueError if it does not tell."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        config = json.load(file)
    try:
        stages = config.get("hooks") or {}
        return {hook["path"] for stage in stages.values() for hook in stage or []}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not as the specification has it: {error!r}") from None


def _recorded(options: Options) -> dict[str, str]:
    """The members on record that are not known to be dead, and the key of each."""
    found: dict[str, str] = {}
    with Records(options.run_dir) as records:
        for key in records.recorded():
            state = records.state(key)
            if isinstance(state, KeyState):
                members = state.members.items()
                found.update({it: key for it, who in members if procfs.is_dead(who.pid, who.starttime) is not True})
    return found
