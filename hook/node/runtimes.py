# SPDX-License-Identifier: Apache-2.0
"""Finds the running containers, by the OCI runtimes' command `state`.

A runtime is not trusted: it may hang, print without end or print anything. Several runtimes may
share one root directory and not read each other's containers (runc and crun share containerd's). So
each is asked in turn, beginning with the one that keeps a file of this container, until one knows
the container.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import NamedTuple

from hook import formats, names, rare, system
from hook.models import State
from hook.node import files, programs
from hook.words import explain_exception, is_invalid

Answers = tuple[dict[str, State], dict[str, str]]

_DIRECTORIES = (
    *programs.PATH.split(":"),
    "/usr/libexec/crio",  # runtimes in CRI-O's packages
    # The same in older packages for Debian; also in Podman's containers.conf(5).
    "/usr/lib/cri-o-runc/sbin",
    "/var/lib/rancher/k3s/data/current/bin",
    "/var/lib/rancher/rke2/bin",
    "/var/lib/k0s/bin",
    # Of the chart's image, which makes a runtime there: packaging/kubernetes/image/runtime.py.
    "/adopt",
)
_ROOTS = (
    # Runc's own for root: CRI-O (runtime_root in its configuration), Podman, plain runc.
    "/run/runc",
    "/run/crun",  # crun's own for root: CRI-O, Podman, plain crun
    # containerd's shim always uses /run/containerd/runc (RuncRoot), with a directory for
    # each of containerd's namespaces: k8s.io for Kubernetes (also k3s, RKE2, k0s),
    # default for ctr and nerdctl.
    "/run/containerd/runc/k8s.io",
    "/run/containerd/runc/default",
    # Docker's (moby) is left out: Docker runs no hooks,
    # so an adopted container would never be removed.
)
# The runtimes, each with the file that it keeps of a container:
# a directory without one holds no container.
_STATE_FILES = {"runc": "state.json", "crun": "status"}
_CONTAINER_TYPES = {
    "cri-o": "io.kubernetes.cri-o.ContainerType",
    "containerd": "io.kubernetes.cri.container-type",
}
_LIVE = ("created", "running", "paused")
_PATIENCE = 4.0  # seconds for one answer
# For one find_states, which each reconcile calls: the next one asks for the rest.
_PATIENCE_FOR_SOME = 5.0
_PATIENCE_IN_ALL = 8.0  # for one list_states: reconcile has other work, and a time limit


class Runtimes(NamedTuple):
    """The OCI runtimes of a node."""

    roots: Sequence[str]
    """Their root directories that exist."""
    programs: Sequence[str]
    """The paths of their programs."""

    def list_states(self, known: Collection[str] = ()) -> Answers:
        """Return what `find_states` does for all containers but the `known` ones.

        A root directory that cannot be read has a line, too. Raises nothing.
        """
        containers: set[str] = set()
        problems: dict[str, str] = {}
        for root in self.roots:
            try:
                containers.update(files.list_if_there(root))
            except files.Unreadable as error:
                problems[root] = f"cannot read {root}: {error.why}"
        states, unanswered = self.find_states(containers.difference(known), _PATIENCE_IN_ALL)
        return states, {**problems, **dict(sorted(unanswered.items()))}

    def find_states(
        self, containers: Collection[str], seconds: float = _PATIENCE_FOR_SOME
    ) -> Answers:
        """Return the states of these containers by ID,
        and a line for each container whose runtime did not answer.

        A state may have any status, also that of a sandbox. A container that no runtime has is in
        neither: it is gone, or belongs to another tool. Raises nothing.
        """
        deadline = system.monotonic() + seconds
        states: dict[str, State] = {}
        unanswered: dict[str, str] = {}
        for container in rare.start_elsewhere(sorted(filter(names.is_container_id, containers))):
            answers = [self._ask(root, container, deadline) for root in self.roots]
            given = [answer for answer in answers if isinstance(answer, State)]
            if given:
                states[container] = next(filter(_is_live, given), given[0])
            elif problems := [answer for answer in answers if isinstance(answer, str)]:
                unanswered[container] = problems[0]
        return states, unanswered

    def _ask(self, root: str, container: str, deadline: float) -> State | str | None:
        """Return the state of a container, or why no runtime gave it.

        None if it is not in the root directory.
        """
        makers = _find_makers(root, container)
        problem = f"{root}: found no runtime to ask for the state of {container}"
        by_maker = sorted(self.programs, key=lambda path: os.path.basename(path) not in makers)
        for program in by_maker if makers else ():
            command = [program, "--root", root, "state", container]
            try:
                return _ask_program(command, container, deadline)
            except ValueError as error:
                kind = "invalid state: " if is_invalid(error) else ""
                problem = f"{' '.join(command)}: {kind}{explain_exception(error)}"
        return problem if _find_makers(root, container) else None


def list_adoptable(states: dict[str, State]) -> list[State]:
    """List the containers that have a process, without those that hold a pod's sandbox:
    for these no hook runs.
    """
    return [
        state for _, state in sorted(states.items()) if _is_live(state) and not is_sandbox(state)
    ]


def _is_live(state: State) -> bool:
    """Whether a container has a process."""
    return state.status in _LIVE and bool(state.pid)


def find_runtimes(further: Sequence[str] = ()) -> Runtimes:
    """Find the installed runtimes.

    `further` are root directories besides those of the container engines.
    """
    roots = [root for root in dict.fromkeys((*further, *_ROOTS)) if os.path.isdir(root)]
    paths = [f"{directory}/{name}" for name in _STATE_FILES for directory in _DIRECTORIES]
    by_file: dict[str, str] = {}
    for path in filter(programs.find_program, paths):
        by_file.setdefault(os.path.realpath(path), path)  # links to the same file count once
    return Runtimes(roots, [*by_file.values()])


def _find_makers(root: str, container: str) -> list[str]:
    """Return the runtimes that have a container in this directory, by their files."""
    return [
        name for name, file in _STATE_FILES.items() if os.path.exists(f"{root}/{container}/{file}")
    ]


def _ask_program(command: Sequence[str], container: str, deadline: float) -> State:
    """Return the valid state of a container, as its runtime prints it.

    A ValueError says why there is none.
    """
    seconds = min(_PATIENCE, deadline - system.monotonic())
    if seconds <= 0:
        raise ValueError("skipped: the time limit was used up by other runtimes")
    ended = programs.run_program(command, seconds=seconds)
    if ended.problem is not None:
        raise ValueError(ended.problem)
    state = State.model_validate(formats.loads(ended.output))
    if state.id != container:
        raise ValueError(f"gave the state of {state.id[:80]!r}")
    return state


def is_sandbox(state: State) -> bool:
    """Whether a container holds its pod's sandbox,
    by the annotations of the runtime that its cgroup identifies.

    A pod's author can write the annotations of another runtime,
    and the user who starts a container of Podman's can write those of each.
    """
    annotations, places = state.annotations or {}, system.cgroups(state.pid) if state.pid else []
    cgroups = [names.find_own(place, state.id) for place in places]
    makers = filter(None, (names.find_maker(cgroup, state.id) for cgroup in cgroups))
    # One that ended has no cgroup.
    maker = next(makers, None if state.pid else annotations.get("io.container.manager"))
    return annotations.get(_CONTAINER_TYPES.get(maker or "", "")) == "sandbox"
