# SPDX-License-Identifier: Apache-2.0
"""Asks the OCI runtimes of this node for their containers, with their commands `list` and `state`.

A runtime is not trusted: it may hang, print without end or print anything. Several runtimes may share one root
directory and not read each other's containers (runc and crun share containerd's). So each is asked in turn, until the
state of every container in the directory is known.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from hook.base import jsontext, names, procfs, system
from hook.base.explain import explain
from hook.base.models import State, ValidationError
from hook.node import door, programs
from hook.node.door import Unreadable
from hook.stages import identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from typing import Any

_DIRECTORIES = (
    *programs.PATH.split(":"),
    "/usr/libexec/crio",  # runtimes in CRI-O's packages
    "/usr/lib/cri-o-runc/sbin",  # the same in older packages for Debian; also in Podman's containers.conf(5)
    "/var/lib/rancher/k3s/data/current/bin",
    "/var/lib/rancher/rke2/bin",
    "/var/lib/k0s/bin",
)
# The root directories of runtimes, and the programs to ask about each, the most likely one first.
_ROOTS = {
    "/run/runc": ("runc", "crun"),  # runc's own for root: CRI-O (runtime_root in its configuration), Podman, plain runc
    "/run/crun": ("crun", "runc"),  # crun's own for root: CRI-O, Podman, plain crun
    # containerd's shim always uses /run/containerd/runc (RuncRoot), with a directory for each of containerd's
    # namespaces: k8s.io for Kubernetes (also k3s, RKE2, k0s), default for ctr and nerdctl.
    "/run/containerd/runc/k8s.io": ("runc", "crun"),
    "/run/containerd/runc/default": ("runc", "crun"),
    # Docker's (moby) is left out: Docker runs no hooks, so an adopted container would never be removed.
}
_STATE_FILES = ("state.json", "status")  # of runc and of crun: a directory without one holds no container
_LIVE = ("created", "running", "paused")
_STOPPED = "stopped"  # ended, not deleted: its poststop hooks run when it is deleted
_PATIENCE = 10.0  # seconds for one answer
_PATIENCE_FOR_SOME = 5.0  # for one find_states, which each reconcile calls: the next one asks for the rest
_PATIENCE_IN_ALL = 30.0  # for one list_states: reconcile has other work, and a time limit
_MOST_PROBLEMS = 10  # reported for one root directory


@dataclass(frozen=True)
class Runtime:
    """An OCI runtime with runc's command line: the path of its program, and its root directory."""

    path: str
    root: str


class _Unanswered(Exception):
    """A runtime gave no answer, or an invalid one."""


def list_states(
    runtimes: Sequence[Runtime] | None = None, further: Sequence[str] = (), *, stopped: bool = False
) -> tuple[list[dict[str, Any]], list[str]]:
    """The states of all containers with a live process, and a line for each runtime or container without an answer.

    A state is the decoded output of `RUNTIME --root ROOT state ID`, valid for models.State. Its status is created,
    running or paused, its pid above 0. `stopped`: include containers that ended and are not deleted. Each ID occurs
    once. Containers that hold a pod's sandbox are left out, because no hook runs for them. Without `runtimes`, asks all
    installed ones, also in the `further` root directories. Raises nothing.
    """
    by_root: dict[str, list[str]] = {} if runtimes is not None else _find_installed(further)
    for runtime in runtimes or ():
        by_root.setdefault(runtime.root, []).append(runtime.path)
    deadline = system.monotonic() + _PATIENCE_IN_ALL
    found: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for root, paths in by_root.items():
        survey = _Survey(root, paths, deadline, {*_LIVE, _STOPPED} if stopped else {*_LIVE})
        survey.ask_for_all()
        for container, state in survey.found.items():
            found.setdefault(container, state)
        problems += survey.list_problems()
    return list(found.values()), problems


def find_states(containers: Collection[str]) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """The states of these containers by ID, and the containers whose runtime did not answer in time.

    Any status, sandboxes included. A container that no runtime has is in neither: it is gone, or belongs to another
    tool. Does not ask about other containers. Raises nothing.
    """
    deadline = system.monotonic() + _PATIENCE_FOR_SOME
    found: dict[str, dict[str, Any]] = {}
    unanswered: set[str] = set()
    for root, paths in _find_installed(()).items():
        survey = _Survey(root, paths, deadline)
        unanswered |= survey.ask_for(it for it in sorted(containers) if it not in found)
        found.update(survey.found)
    return found, unanswered - found.keys()


def has_roots() -> bool:
    """Whether a root directory of a runtime exists here. Inside a container, for example, none may be mounted."""
    return bool(_find_installed(()))


def _find_installed(further: Sequence[str]) -> dict[str, list[str]]:
    """The existing root directories, and the programs to ask about each (may be empty)."""
    roots = {**dict.fromkeys(further, ("runc", "crun")), **_ROOTS}
    existing = [root for root in roots if os.path.isdir(root)]
    return {root: [path for name in roots[root] for path in _find_programs(name)] for root in existing}


def _find_programs(name: str) -> list[str]:
    """The paths of all programs of this name; links to the same file count once."""
    paths = [f"{directory}/{name}" for directory in _DIRECTORIES]
    found: dict[str, str] = {}
    for path in paths:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


class _Survey:
    """Asks the runtimes of one root directory. `found`: the states of its containers with these statuses, by ID.

    Without `statuses`: any status, and sandboxes too.
    """

    def __init__(self, root: str, paths: Sequence[str], deadline: float, statuses: set[str] | None = None) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self._root = root
        self._programs = paths
        self._deadline = deadline
        self._statuses = statuses
        self._pending: set[str] = set()  # containers whose state is not known yet
        self._listed_by: dict[str, str] = {}
        self._failed: list[str] = []  # problems of the whole directory, as lines
        self._problems: dict[str, str] = {}  # of one container, as lines, by ID

    def ask_for_all(self) -> None:
        """Ask the programs in turn until the state of each container is known."""
        try:
            # Not for a missing directory: both runc and crun would create it.
            self._pending = {name for name in door.list_names(self._root) if _is_container_id(name)}
        except Unreadable as error:
            if error.is_missing:
                return
            self._failed.append(f"cannot read {self._root}: {error.why}")
        for program in self._programs:
            if self._pending - self._listed_by.keys():
                self._list(program)
        # crun's list has no annotations. It also ends, without an error, at the first container that it cannot read.
        for container in sorted(self._pending):
            listed_by = self._listed_by.get(container)
            for program in [listed_by] if listed_by else self._programs:
                if container in self._pending and self._exists(container):
                    self._ask_for(program, container)

    def ask_for(self, containers: Iterable[str]) -> set[str]:
        """Ask for those of these containers that are in this directory; returns those without an answer."""
        self._pending = {name for name in containers if _is_container_id(name) and self._exists(name)}
        for container in sorted(self._pending):
            for program in self._programs:
                if container in self._pending:
                    self._ask_for(program, container)
        return self._pending

    def _list(self, program: str) -> None:
        words = ("list", "--format", "json")
        try:
            entries = self._call(program, *words)
            if entries is None:  # runc prints null for an empty list
                return
            if not isinstance(entries, list):
                raise _Unanswered("not a JSON list")
        except _Unanswered as error:
            self._failed.append(f"{self._format_command(program, *words)}: {error}")
            return
        invalid = [entry for entry in entries if not _is_entry(entry)]
        if invalid:
            self._failed.append(f"{self._format_command(program, *words)}: {len(invalid)} entries are not containers")
        for entry in entries:
            if _is_entry(entry) and entry["id"] in self._pending:
                self._listed_by.setdefault(entry["id"], program)
                if self._statuses is not None and entry["status"] not in self._statuses:
                    self._pending.discard(entry["id"])
                elif "ociVersion" in entry and "annotations" in entry:  # runc lists whole states
                    self._note_state(program, entry["id"], entry)

    def _ask_for(self, program: str, container: str) -> None:
        try:
            self._note_state(program, container, self._call(program, "state", container))
        except _Unanswered as error:
            self._problems[container] = f"{self._format_command(program, 'state', container)}: {error}"

    def _note_state(self, program: str, container: str, state: Any) -> None:  # noqa: ANN401  not validated yet
        """Keep a state if it is valid and has one of the wanted statuses."""
        try:
            checked = State.model_validate(state)
        except ValidationError as error:
            self._problems[container] = f"{program}: invalid state of {container}: {explain(error.errors())}"
            return
        if checked.id != container:
            self._problems[container] = f"{program}: gave the state of {checked.id[:80]!r} for {container}"
            return
        self._pending.discard(container)
        if self._statuses is None:
            self.found[container] = state
            return
        is_wanted = checked.status in self._statuses and (checked.pid or checked.status == _STOPPED)
        if is_wanted and not is_sandbox(checked):
            self.found[container] = state

    def _format_command(self, program: str, *words: str) -> str:
        return " ".join((program, "--root", self._root, *words))

    def _call(self, program: str, *words: str) -> Any:  # noqa: ANN401  any JSON
        """The decoded output of a runtime. _Unanswered has no command in its text: the caller adds it."""
        seconds = min(_PATIENCE, self._deadline - system.monotonic())
        if seconds <= 0:
            raise _Unanswered("skipped: the time limit was used up by other runtimes")
        ended = programs.run([program, "--root", self._root, *words], seconds=seconds)
        if ended.problem is not None:
            raise _Unanswered(ended.problem)
        try:
            return jsontext.loads(ended.output)
        except ValueError as error:
            raise _Unanswered(str(error)) from None

    def _exists(self, container: str) -> bool:
        return any(os.path.exists(f"{self._root}/{container}/{name}") for name in _STATE_FILES)

    def list_problems(self) -> list[str]:
        """A line for each problem; none for a container that is gone by now."""
        left = sorted(container for container in self._pending if self._exists(container))
        known = [self._problems[container] for container in left if container in self._problems]
        lines = [*self._failed, *known[:_MOST_PROBLEMS]]
        if len(known) > _MOST_PROBLEMS:
            lines.append(f"{self._root}: the same problem with {len(known) - _MOST_PROBLEMS} more containers")
        if left and not self._programs:
            lines.append(f"{self._root}: found no runtime to ask for the state of {len(left)} containers")
        return lines


def _is_container_id(text: str) -> bool:
    try:
        names.container_id(text)
    except ValueError:
        return False
    return True


def _is_entry(entry: Any) -> bool:  # noqa: ANN401  not validated yet
    """Whether this is an entry for a container in the output of `list`."""
    return isinstance(entry, dict) and isinstance(entry.get("id"), str) and isinstance(entry.get("status"), str)


def is_sandbox(state: State) -> bool:
    """Whether a container holds its pod's sandbox, by the annotations of its own runtime.

    Its cgroup identifies that runtime. A pod's author can write the annotations of the other one.
    """
    annotations, places = state.annotations or {}, procfs.cgroups(state.pid) if state.pid else []
    maker = next(
        filter(None, (identity.maker(place, state.id) for place in places)), annotations.get("io.container.manager")
    )
    by_containerd = annotations.get("io.kubernetes.cri.container-type")
    if maker != "containerd" and (maker == "cri-o" or by_containerd is None):
        return annotations.get("io.kubernetes.cri-o.ContainerType") == "sandbox"
    return by_containerd == "sandbox"
