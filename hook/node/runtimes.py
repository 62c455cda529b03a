# SPDX-License-Identifier: Apache-2.0
"""Finds the running containers, by the OCI runtimes' command `state`, those that never got the hook, and their names.

A runtime is not trusted: it may hang, print without end or print anything. Several runtimes may share one root
directory and not read each other's containers (runc and crun share containerd's). So each is asked in turn, beginning
with the one that keeps a file of this container, until one knows the container.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from hook import conmon, identity, names, system, validation
from hook.context import Context
from hook.identity import Pod
from hook.models import Annotations, Config, Failure, Index, KeyState, Options, State, ValidationError
from hook.node import engines, files, hooksd, programs
from hook.node.hooksd import find_our_hooks, list_hooks, parse_options, read_hooks
from hook.node.models import Unhooked, UnhookedContainer
from hook.node.processes import Process, Processes, cgroup_of_config, find_container_id, read_status
from hook.validation import replace
from hook.words import explain_invalid

T = TypeVar("T")

_DIRECTORIES = (
    *programs.PATH.split(":"),
    "/usr/libexec/crio",  # runtimes in CRI-O's packages
    "/usr/lib/cri-o-runc/sbin",  # the same in older packages for Debian; also in Podman's containers.conf(5)
    "/var/lib/rancher/k3s/data/current/bin",
    "/var/lib/rancher/rke2/bin",
    "/var/lib/k0s/bin",
    "/adopt",  # of the chart's image, which makes a runtime there: packaging/kubernetes/image/runtime.py
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
_CONTAINER_TYPES = {"cri-o": "io.kubernetes.cri-o.ContainerType", "containerd": "io.kubernetes.cri.container-type"}
_LIVE = ("created", "running", "paused")
_PATIENCE = 4.0  # seconds for one answer
_PATIENCE_FOR_SOME = 5.0  # for one find_states, which each reconcile calls: the next one asks for the rest
_PATIENCE_IN_ALL = 8.0  # for one list_states: reconcile has other work, and a time limit


class Runtimes(NamedTuple):
    """The OCI runtimes of a node."""

    roots: Sequence[str]
    """Their root directories that exist."""
    programs: Sequence[str]
    """The paths of their programs."""

    def list_states(self, known: Collection[str] = ()) -> tuple[list[State], list[str]]:
        """Return the states of all containers with a live process, and a line for each one without an answer.

        Containers that hold a pod's sandbox are left out, because no hook runs for them. `known` containers are not
        asked about. Raises nothing.
        """
        containers: set[str] = set()
        problems: list[str] = []
        for root in self.roots:
            try:
                containers.update(files.list_if_there(root))
            except files.Unreadable as error:
                problems.append(f"cannot read {root}: {error.why}")
        states, unanswered = self.find_states(containers.difference(known), _PATIENCE_IN_ALL)
        live = [state for _, state in sorted(states.items()) if _is_live(state) and not is_sandbox(state)]
        return live, problems + [problem for _, problem in sorted(unanswered.items())]

    def find_states(
        self, containers: Collection[str], seconds: float = _PATIENCE_FOR_SOME
    ) -> tuple[dict[str, State], dict[str, str]]:
        """Return the states of these containers by ID, and a line for each container whose runtime did not answer.

        A state may have any status, also that of a sandbox. A container that no runtime has is in neither: it is gone,
        or belongs to another tool. Raises nothing.
        """
        deadline = system.monotonic() + seconds
        found: dict[str, State] = {}
        unanswered: dict[str, str] = {}
        for container in start_elsewhere(sorted(filter(names.is_container_id, containers))):
            answers = [self._ask(root, container, deadline) for root in self.roots]
            states = [answer for answer in answers if isinstance(answer, State)]
            if states:
                found[container] = next(filter(_is_live, states), states[0])
            elif problems := [answer for answer in answers if isinstance(answer, str)]:
                unanswered[container] = problems[0]
        return found, unanswered

    def _ask(self, root: str, container: str, deadline: float) -> State | str | None:
        """Return the state of a container, or why no runtime gave it. None if it is not in the root directory."""
        makers = _find_makers(root, container)
        problem = f"{root}: found no runtime to ask for the state of {container}"
        for program in sorted(self.programs, key=lambda path: os.path.basename(path) not in makers):
            if not _find_makers(root, container):
                return None
            command = [program, "--root", root, "state", container]
            try:
                return _ask_program(command, container, deadline)
            except ValidationError as error:
                problem = f"{' '.join(command)}: invalid state: {explain_invalid(error.errors())}"
            except ValueError as error:
                problem = f"{' '.join(command)}: {error}"
        return problem if _find_makers(root, container) else None


def _is_live(state: State) -> bool:
    """Whether a container has a process."""
    return state.status in _LIVE and bool(state.pid)


def start_elsewhere(items: Sequence[T]) -> list[T]:
    """Return the same items in turn, but begin with another one at each call, so that none is always too late."""
    at = int(system.boottime() * 1000) % len(items) if items else 0
    return [*items[at:], *items[:at]]


def find_runtimes(further: Sequence[str] = ()) -> Runtimes:
    """Find the installed runtimes. `further` are root directories besides those of the container engines."""
    roots = [root for root in dict.fromkeys((*further, *_ROOTS)) if os.path.isdir(root)]
    paths = [f"{directory}/{name}" for name in _STATE_FILES for directory in _DIRECTORIES]
    found: dict[str, str] = {}
    for path in filter(programs.find_program, paths):
        found.setdefault(os.path.realpath(path), path)  # links to the same file count once
    return Runtimes(roots, [*found.values()])


def _find_makers(root: str, container: str) -> list[str]:
    """Return the runtimes that have a container in this directory, by their files."""
    return [name for name, file in _STATE_FILES.items() if os.path.exists(f"{root}/{container}/{file}")]


def _ask_program(command: Sequence[str], container: str, deadline: float) -> State:
    """Return the valid state of a container, as its runtime prints it. A ValueError says why there is none."""
    seconds = min(_PATIENCE, deadline - system.monotonic())
    if seconds <= 0:
        raise ValueError("skipped: the time limit was used up by other runtimes")
    ended = programs.run_program(command, seconds=seconds)
    if ended.problem is not None:
        raise ValueError(ended.problem)
    state = State.model_validate(system.loads(ended.output))
    if state.id != container:
        raise ValueError(f"gave the state of {state.id[:80]!r}")
    return state


def is_sandbox(state: State) -> bool:
    """Whether a container holds its pod's sandbox, by the annotations of the runtime that its cgroup identifies.

    A pod's author can write the annotations of another runtime, and the user who starts a container of Podman's can
    write those of each.
    """
    annotations, places = state.annotations or {}, system.cgroups(state.pid) if state.pid else []
    owns = [identity.find_own(place, state.id) for place in places]
    makers = filter(None, (identity.find_maker(own, state.id) for own in owns))
    maker = next(makers, None if state.pid else annotations.get("io.container.manager"))  # one that ended has no cgroup
    return annotations.get(_CONTAINER_TYPES.get(maker or "", "")) == "sandbox"


# --- Running containers that never got the hook, for example because the hook-injector is not running
#
# The hook is not called for them, so it cannot report them: reconcile does. A candidate is a container whose own cgroup
# has a process and which has no record. Only candidates are looked up in the OCI runtimes. The result is saved, because
# IDs are unique: a pod's sandbox, or a container that filters exclude, is looked up once. In the chart's containers,
# which see no runtime, the kernel tells a pod's sandbox from its containers.

_NONE_SEEN = Unhooked(since="", containers={}, unchecked=0, rules="", others=[])
_STARTED = ("running", "paused")  # a `created` one may still run its createRuntime hooks
_YOUNG = 60.0  # seconds for which a container may still run these, where no runtime can be asked
_PAUSE_SIGNALS = 0x14002  # SIGINT, SIGTERM, SIGCHLD: those that the pause program of Kubernetes catches


def find_unhooked(context: Context, processes: Processes) -> Unhooked | None:
    """Find the containers that never got the hook, and save them for `list`, `doctor`, `metrics` and the next call.

    Raises HookError, OSError. Returns None and saves nothing if there are candidates, and neither our files nor
    the kernel can say whether they should have the hook.
    """
    run, options = context.run, context.options
    marked = {container for place in processes.cgroups() for _, container in identity.find_marked(place)}
    running = marked.union(filter(None, map(find_container_id, processes.cgroups())))
    candidates = running.difference(run.names(Index), run.names(Failure))
    former = run.glance(Unhooked, "unhooked") or _NONE_SEEN
    rules, digest = _read_rules(options.run_dir) if candidates else ([], former.rules)
    if candidates and not digest:
        # Neither hooks.d nor a runtime is visible, as in the chart's containers. All containers of pods should have the
        # hook then, unless it has filters, which only the runtime could apply.
        if find_runtimes().roots or options.namespace or options.annotation or options.monitor != "all":
            run.remove(Unhooked, "unhooked")
            return None
        # A container that came and went between two looks, as a Job's, has left its key's record.
        gone = (key.created_boottime or 0.0 for key in run.list_states() if key.kind == "pod" and not key.members)
        found = _find_by_cgroup(processes, candidates, max([former.last_hooked, *gone]))
    else:
        sandboxes = candidates.intersection(former.sandboxes)
        if former.rules != digest:
            former = _NONE_SEEN
        known = {container: former.containers[container] for container in candidates & former.containers.keys()}
        others = candidates.intersection(former.others)
        asked = candidates - known.keys() - others - sandboxes
        new = _ask_runtimes(asked, rules, options.run_dir) if asked else _NONE_SEEN
        # Read the records again: a hook that was running at the first read has written its record by now.
        recorded = {*run.names(Index), *run.names(Failure)} if new.containers else set()
        fresh = {container: pod for container, pod in new.containers.items() if container not in recorded}
        found = replace(
            new,
            containers={**known, **fresh},
            others=sorted(others.union(new.others)),
            sandboxes=sorted(sandboxes.union(new.sandboxes)),
            last_hooked=former.last_hooked,
        )
    found = replace(found, since=system.now_utc(), rules=digest)
    run.write(Unhooked, "unhooked", found)
    return found


def _find_by_cgroup(processes: Processes, candidates: set[str], last_hooked: float) -> Unhooked:
    """Find the candidates that are containers of pods, by their cgroups, and those that hold a pod's sandbox.

    Leaves out those of our own pod, which starts before it has installed the hook, and those that started just now. A
    sandbox is the first container of its pod, and runs the pause program: one process of one thread. A tenant's
    container is the first only where that has ended. `last_hooked` is when the last one with the hook started that is
    known from before, for it may have ended.
    """
    located = {places: _locate(places) for places in {process.cgroups for process in processes.by_pid.values()}}
    pods: dict[str, dict[str, list[Process]]] = {}
    for process in processes.by_pid.values():
        if (place := located[process.cgroups]) is not None:
            pods.setdefault(place[0], {}).setdefault(place[1], []).append(process)
    own = _locate(system.cgroups(os.getpid()))
    found: dict[str, tuple[float, str]] = {}
    sandboxes: list[str] = []
    for uid, containers in pods.items():
        born = {name: min(one.starttime for one in inside) / system.TICKS for name, inside in containers.items()}
        last_hooked = max([last_hooked, *(at for name, at in born.items() if name not in candidates)])
        if own is not None and uid == own[0]:
            continue
        first = min(born, key=born.__getitem__)
        for name in sorted(candidates & born.keys()):
            init = containers[name][0]
            is_alone = len(containers[name]) == init.threads == 1
            if name == first and is_alone and read_status(init.pid, "SigCgt", 16) == _PAUSE_SIGNALS:
                sandboxes.append(name)
            elif processes.boottime - born[name] > _YOUNG:
                found[name] = born[name], uid
    last, _ = max(found.values(), default=(0.0, ""))
    at = system.unix_time() - processes.boottime + last if last > last_hooked else None
    unnamed = {name: UnhookedContainer(uid=uid) for name, (_, uid) in found.items()}
    return replace(_NONE_SEEN, containers=unnamed, sandboxes=sandboxes, last_started_at=at, last_hooked=last_hooked)


def _locate(places: Iterable[str]) -> tuple[str, str] | None:
    """Return the UID of a pod and its container, by the cgroups of a process. conmon is in no container: None.

    Nor is a cgroup that a user made in that of a service, which may be the user's, or a container in its own.
    """
    for place in places:
        for own, container in identity.find_marked(place)[:1]:
            is_pods = identity.find_maker(own, container) != "libpod" and container == find_container_id(place)
            uid = identity.pod_uid(own) if is_pods and ".service/" not in own else None
            if uid is not None:
                return uid, container
    return None


def _read_rules(run_dir: str) -> tuple[list[Options], str]:
    """Return which containers should have the hook, and a hash of that, which is empty if there are no rules.

    The rules are the options of our hooks.d files with this run directory, and the base_runtime_specs.
    """
    entries = [entry for path in sorted(engines.list_hooks_dirs()) for entry in hooksd.read_directory(path)]
    parsed = [(entry.file, parse_options(entry.our_hook)[0]) for entry in entries if entry.our_hook is not None]
    ours = [(file, options) for file, options in parsed if options.run_dir == run_dir]
    named = {spec.path for spec in engines.read_containerd().specs}
    # An unreadable one does not count: containers do not start with it.
    specs = sorted(path for path in named if find_our_hooks(system.try_call(read_hooks, path) or {}))
    text = system.dumps([[file for file, _ in ours], specs]).encode()
    return [options for _, options in ours], hashlib.sha256(text).hexdigest()[:16] if ours or specs else ""


def _ask_runtimes(candidates: set[str], rules: list[Options], run_dir: str) -> Unhooked:
    """Find out from the runtimes which candidates run and should have the hook."""
    installed = find_runtimes()
    states, unanswered = installed.find_states(candidates) if installed.roots else ({}, candidates)
    unchecked = len(unanswered)
    found: dict[str, UnhookedContainer] = {}
    others: list[str] = []
    sandboxes: list[str] = []
    for container, state in states.items():
        if state.status not in _STARTED:
            continue
        try:
            if is_sandbox(state):
                sandboxes.append(container)
            elif (pod := _match(state, rules, run_dir)) is not None:
                found[container] = UnhookedContainer(namespace=pod.namespace, pod=pod.name, name=pod.container)
            else:
                others.append(container)
        except (OSError, ValueError):  # for example, its bundle is gone
            unchecked += 1
    return replace(_NONE_SEEN, containers=found, unchecked=unchecked, others=others, sandboxes=sandboxes)


def _match(state: State, rules: list[Options], run_dir: str) -> Pod | None:
    """Return the pod of a container that should have the hook, with its names, or None.

    The cgroup that its runtime was asked for counts, since the container can have moved its process to another one.
    Raises OSError, ValueError if its config.json is unreadable.
    """
    path = f"{state.bundle}/config.json"
    whole = files.read_json(path, files.BUNDLE)
    bundle = Config.model_validate(whole)
    place = cgroup_of_config(bundle.linux.cgroups_path if bundle.linux is not None else None)
    places = [place] if place is not None else []
    pod = identity.pod_of(state.id, Annotations.model_validate(state.annotations or {}), places)
    name_running(pod, state.id, state.bundle, places)
    given = [parse_options(hook)[0] for hook in find_our_hooks(list_hooks(path, whole))]  # a container with the hook
    candidates = [options for options in given if options.run_dir == run_dir]
    if pod.is_podmans or pod.uid is not None:  # the runtimes of all others read no hooks.d
        candidates += rules
    is_meant = any(
        identity.concerns(options, is_podmans=pod.is_podmans)
        and not conmon.leaves_out(options, pod)
        and identity.is_wanted(options, bundle.annotations or {}, pod)
        for options in candidates
    )
    return pod if is_meant else None


# --- The names that Podman keeps
#
# Containers: containers/storage, `containers.json` and `volatile-containers.json` (those that a reboot removes), which
# are root's files. Pods: Podman itself is asked. Without CAP_SYS_ADMIN it would take root for a rootless user, so the
# timer's reconcile leaves the mark `podman-pods.wanted` in the run directory. Where the mark is, the unit runs Podman
# with full rights before the next reconcile, which reads the answer in `podman-pods.json`. A pod's name never changes,
# so an old answer may lack a name, but has no wrong one.

_LISTS = ("containers.json", "volatile-containers.json")
MARK, _ANSWER = "podman-pods.wanted", "podman-pods.json"
_LIMIT = 64 << 20  # bytes of a file of Podman's
_PATIENCE_FOR_PODMAN = 5.0  # seconds for an answer
_SYS_ADMIN = 1 << 21  # capabilities(7)


class PodmanNames:
    """Podman's names. Each kind is read at its first use."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._lacks_pods = False

    @cached_property
    def containers(self) -> Mapping[str, str]:
        """The name of each container, by its ID."""
        root = engines.read_graph_root()
        directories = system.try_call(files.list_names, root) or ()  # one for each storage driver ever used
        return read_containers([f"{root}/{name}" for name in directories if name.endswith("-containers")])

    def find_pod(self, digits: str) -> str | None:
        """Return the name of a pod, by the first digits of its ID, or None if Podman has not given it."""
        name = self._pods.get(digits)
        self._lacks_pods = self._lacks_pods or name is None
        return name

    @property
    def wants_pods(self) -> bool:
        """Whether the mark should be left: a name was missing, and Podman is installed but cannot be asked here."""
        return self._lacks_pods and self._podman is not None and not self._may_ask

    @cached_property
    def _podman(self) -> str | None:
        return programs.find_program("podman")

    @cached_property
    def _may_ask(self) -> bool:
        return bool(read_status("self", "CapEff", 16) & _SYS_ADMIN)

    @cached_property
    def _pods(self) -> Mapping[str, str]:
        """The name of each pod, by the first digits of its ID. Empty if there is no answer."""
        if self._podman is not None and self._may_ask:
            ended = programs.run_program([self._podman, "pod", "ps", "--format=json"], seconds=_PATIENCE_FOR_PODMAN)
            try:
                answer = system.loads(ended.output) if ended.status == 0 else None
            except ValueError:
                answer = None
        else:
            answer = system.try_call(files.read_json, f"{self._run_dir}/{_ANSWER}", _LIMIT)
        both = [(pod.get("Id"), pod.get("Name")) for pod in _list_objects(answer)]
        return {pod[: conmon.POD_DIGITS]: name for pod, name in both if isinstance(pod, str) and isinstance(name, str)}


def read_containers(directories: Collection[str]) -> dict[str, str]:
    """Return the name of each container in these directories of containers/storage, by its ID.

    Unreadable files are skipped.
    """
    found: dict[str, str] = {}
    for path in [f"{directory}/{name}" for directory in directories for name in _LISTS]:
        for entry in _list_objects(system.try_call(files.read_json, path, _LIMIT)):
            container, given = entry.get("id"), entry.get("names")
            if isinstance(container, str) and isinstance(given, list) and given and isinstance(given[0], str):
                found[container] = given[0]
    return found


def _list_objects(found: object) -> list[dict[str, Any]]:
    """Return the objects in a list, or none if it is no list."""
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def name_running(pod: identity.Pod, container: str, bundle: str, places: list[str]) -> None:
    """Add Podman's names to the pod of a container that runs already, by the storage that its bundle is in.

    `places` are the cgroups that its runtime made for it, as in system.cgroups.
    """
    if pod.is_podmans:
        storage = os.path.dirname(os.path.dirname(bundle))  # of <storage>/<ID>/userdata
        pod.container = identity.bounded(read_containers([storage]).get(container))
        pod.name = conmon.find_pod(places, container)


def _is_podmans(cgroup: str | None, container: str) -> bool:
    return identity.find_maker(identity.find_own(cgroup or "", container), container) == "libpod"


def add_names(state: KeyState, known: PodmanNames) -> KeyState:
    """Add Podman's names to a key that lacks some. Return the same state if there is nothing to add.

    Only a container whose cgroup Podman made is looked up.
    """
    ours = {name: member.cgroup or "" for name, member in state.members.items() if _is_podmans(member.cgroup, name)}
    members = {}
    for name in ours:
        container = names.container_of(name)
        if state.members[name].name is None and container in known.containers:
            members[name] = validation.replace(state.members[name], name=identity.bounded(known.containers[container]))
    found = (conmon.find_pod([place], name) for name, place in ours.items())
    digits = state.pod_name or next(filter(None, found), None)
    pod = digits
    if pod is not None and state.pod_namespace is None and len(pod) == conmon.POD_DIGITS and names.is_hex(pod):
        pod = identity.bounded(known.find_pod(pod)) or pod
    if pod == state.pod_name and not members:
        return state
    new = next((member.name for member in members.values()), None)
    own = (state.name or new) if state.kind == "container" else None
    named = validation.replace(state, pod_name=digits, name=own, members={**state.members, **members})
    # The hook that records a container has the digits only: as a label they stay, also if the record was lost.
    return names.keep_labels(named, validation.replace(named, pod_name=pod))
