# SPDX-License-Identifier: Apache-2.0
"""Asks the OCI runtimes of this node for the states of containers, with their command `state`.

A runtime is not trusted: it may hang, print without end or print anything. Several runtimes may share one root
directory and not read each other's containers (runc and crun share containerd's). So each is asked in turn, first the
one whose file is there, until one knows the container.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hook.base import jsontext, names, procfs, system
from hook.base.explain import explain
from hook.base.models import State, ValidationError
from hook.node import door, programs
from hook.node.door import Unreadable
from hook.stages import identity

_DIRECTORIES = (
    *programs.PATH.split(":"),
    "/usr/libexec/crio",  # runtimes in CRI-O's packages
    "/usr/lib/cri-o-runc/sbin",  # the same in older packages for Debian; also in Podman's containers.conf(5)
    "/var/lib/rancher/k3s/data/current/bin",
    "/var/lib/rancher/rke2/bin",
    "/var/lib/k0s/bin",
)
_ROOTS = (
    "/run/runc",  # runc's own for root: CRI-O (runtime_root in its configuration), Podman, plain runc
    "/run/crun",  # crun's own for root: CRI-O, Podman, plain crun
    # containerd's shim always uses /run/containerd/runc (RuncRoot), with a directory for each of containerd's
    # namespaces: k8s.io for Kubernetes (also k3s, RKE2, k0s), default for ctr and nerdctl.
    "/run/containerd/runc/k8s.io",
    "/run/containerd/runc/default",
    # Docker's (moby) is left out: Docker runs no hooks, so an adopted container would never be removed.
)
# The runtimes, each with the file that it keeps of a container: a directory without one holds no container.
_STATE_FILES = {"runc": "state.json", "crun": "status"}
_LIVE = ("created", "running", "paused")
_STOPPED = "stopped"  # ended, not deleted: its poststop hooks run when it is deleted
_PATIENCE = 10.0  # seconds for one answer
_PATIENCE_FOR_SOME = 5.0  # for one find_states, which each reconcile calls: the next one asks for the rest
_PATIENCE_IN_ALL = 30.0  # for one list_states: reconcile has other work, and a time limit
_MOST_PROBLEMS = 10  # reported for one root directory


class Unanswered(Exception):
    """A runtime gave no answer, or an invalid one."""


@dataclass(frozen=True)
class Runtimes:
    """The OCI runtimes of a node: their root directories that exist, and the paths of their programs."""

    roots: Sequence[str]
    programs: Sequence[str]

    def list_states(
        self, known: Collection[str] = (), *, stopped: bool = False
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """The states of all containers with a live process, and a line for each runtime or container without an answer.

        A state is the decoded output of `RUNTIME --root ROOT state ID`, valid for models.State. Its status is created,
        running or paused, its pid above 0. `stopped`: include containers that ended and are not deleted. Each ID occurs
        once. Containers that hold a pod's sandbox are left out, because no hook runs for them. Does not ask about
        `known` containers. Raises nothing.
        """
        containers: set[str] = set()
        problems: list[str] = []
        for root in self.roots:
            try:
                containers.update(door.list_names(root))
            except Unreadable as error:
                problems += [] if error.is_missing else [f"cannot read {root}: {error.why}"]
        states, unanswered = self._ask(containers.difference(known), _PATIENCE_IN_ALL)
        found: dict[str, dict[str, Any]] = {}
        for state in states:
            checked = State.model_validate(state)
            is_live = checked.status in _LIVE and checked.pid
            if (is_live or (stopped and checked.status == _STOPPED)) and not is_sandbox(checked):
                found.setdefault(checked.id, state)
        lines = list(unanswered.values())
        more = len(lines) - _MOST_PROBLEMS
        tail = [f"the same problem with {more} more containers"] if more > 0 else []
        return list(found.values()), [*problems, *lines[:_MOST_PROBLEMS], *tail]

    def find_states(self, containers: Collection[str]) -> tuple[dict[str, dict[str, Any]], set[str]]:
        """The states of these containers by ID, and the containers whose runtime did not answer in time.

        Any status, sandboxes included. A container that no runtime has is in neither: it is gone, or belongs to another
        tool. Does not ask about other containers. Raises nothing.
        """
        states, unanswered = self._ask(containers, _PATIENCE_FOR_SOME)
        found = {state["id"]: state for state in states}
        return found, unanswered.keys() - found.keys()

    def _ask(self, containers: Iterable[str], seconds: float) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """The states of these containers in any root directory, and a line for each one without an answer, by ID."""
        deadline = system.monotonic() + seconds
        found: list[dict[str, Any]] = []
        unanswered: dict[str, str] = {}
        for container in sorted(filter(_is_container_id, containers)):
            for root in self.roots:
                try:
                    found += self._ask_programs(root, container, deadline)
                except Unanswered as error:
                    unanswered[container] = str(error)
        return found, unanswered

    def _ask_programs(self, root: str, container: str, deadline: float) -> list[dict[str, Any]]:
        """The state of a container; none if it is not in the root directory, or not any more."""
        makers = _find_makers(root, container)
        problem = f"{root}: found no runtime to ask for the state of {container}"
        for program in sorted(self.programs, key=lambda it: os.path.basename(it) not in makers):
            if not _find_makers(root, container):
                return []
            command = [program, "--root", root, "state", container]
            try:
                return [_ask_program(command, container, deadline)]
            except Unanswered as error:
                problem = f"{' '.join(command)}: {error}"
        if _find_makers(root, container):
            raise Unanswered(problem)
        return []


def find_runtimes(further: Sequence[str] = ()) -> Runtimes:
    """The installed ones. `further`: root directories besides those where engines keep their containers."""
    roots = [root for root in dict.fromkeys((*further, *_ROOTS)) if os.path.isdir(root)]
    paths = [f"{directory}/{name}" for name in _STATE_FILES for directory in _DIRECTORIES]
    found: dict[str, str] = {}
    for path in filter(programs.is_program, paths):
        found.setdefault(os.path.realpath(path), path)  # links to the same file count once
    return Runtimes(roots, [*found.values()])


def _find_makers(root: str, container: str) -> list[str]:
    """The runtime that has a container in this directory, by its file."""
    return [name for name, file in _STATE_FILES.items() if os.path.exists(f"{root}/{container}/{file}")]


def _is_container_id(text: str) -> bool:
    try:
        names.container_id(text)
    except ValueError:
        return False
    return True


def _ask_program(command: Sequence[str], container: str, deadline: float) -> dict[str, Any]:
    """The valid state of a container, as its runtime prints it. Raises Unanswered."""
    seconds = min(_PATIENCE, deadline - system.monotonic())
    if seconds <= 0:
        raise Unanswered("skipped: the time limit was used up by other runtimes")
    ended = programs.run_program(command, seconds=seconds)
    if ended.problem is not None:
        raise Unanswered(ended.problem)
    return parse_state(ended.output, container)


def parse_state(output: str, container: str) -> dict[str, Any]:
    """The state of a container in what its runtime has printed. Raises Unanswered if it is not that."""
    try:
        state: dict[str, Any] = jsontext.loads(output)
        checked = State.model_validate(state)
    except ValidationError as error:
        raise Unanswered(f"invalid state: {explain(error.errors())}") from None
    except ValueError as error:
        raise Unanswered(str(error)) from None
    if checked.id != container:
        raise Unanswered(f"gave the state of {checked.id[:80]!r}")
    return state


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
