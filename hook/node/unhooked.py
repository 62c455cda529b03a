# SPDX-License-Identifier: Apache-2.0
"""Finds running containers that never got the hook,
for example because the hook-injector is not running.

The hook is not called for them, so it cannot report them: reconcile does. A candidate is a
container whose own cgroup has a process and which has no record. Only candidates are looked up in
the OCI runtimes. The result is saved, because IDs are unique: a pod's sandbox, or a container that
filters exclude, is looked up once. In the chart's containers, which see no runtime, the kernel
tells a pod's sandbox from its containers.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

from hook import conmon, formats, identity, rare, system
from hook.context import Context
from hook.models import Annotations, Config, Failure, Index, Options, State
from hook.node import engines, files, hooksd
from hook.node.models import Unhooked, UnhookedContainer
from hook.node.naming import name_running
from hook.node.processes import Process, Processes, find_container, list_requested, read_status
from hook.node.runtimes import Answers, Runtimes, find_runtimes, is_sandbox
from hook.validation import replace

_NONE = Unhooked(since="", containers={}, unchecked=0, rules="", others=[])
_STARTED = ("running", "paused")  # a `created` one may still run its createRuntime hooks
_YOUNG = 60.0  # seconds for which a container may still run these, where no runtime can be asked
# SIGINT, SIGTERM, SIGCHLD: those that the pause program of Kubernetes catches.
_PAUSE_SIGNALS = 0x14002


def find_unhooked(
    context: Context, processes: Processes, answers: Answers | None = None
) -> Unhooked | None:
    """Find the containers that never got the hook, and save them for `list`, `doctor`,
    `metrics` and the next call.

    `answers` are what the runtimes have answered in this run already, for --adopt. Raises
    HookError, OSError. Returns None and saves nothing if there are candidates, and neither our
    files nor the kernel can say whether they should have the hook.
    """
    run, options = context.run, context.options
    marked = {
        container for place in processes.cgroups for _, container in identity.find_marked(place)
    }
    running = marked.union(filter(None, map(find_container, processes.cgroups)))
    candidates = running.difference(run.list_names(Index), run.list_names(Failure))
    former = run.glance(Unhooked, "unhooked") or _NONE
    rules, digest = _read_rules(options.run_dir) if candidates else ([], former.rules)
    if candidates and not digest:
        # Neither hooks.d nor a runtime is visible, as in the chart's containers. All containers of
        # pods should have the hook then, unless it has filters, which only the runtime could apply.
        if (
            find_runtimes().roots
            or options.namespace
            or options.annotation
            or options.monitor != "all"
        ):
            run.remove(Unhooked, "unhooked")
            return None
        # A container that came and went between two looks, as a Job's, has left its key's record.
        left = [key for key in run.list_states() if key.kind == "pod" and not key.members]
        last_hooked = max([former.last_hooked, *(key.created_boottime or 0.0 for key in left)])
        # While that key has not ended, what runs in its pod has outlived a
        # container that had the hook.
        unended = {key.key for key in left if key.completed_at is None}
        unhooked = _find_by_cgroup(processes, candidates, last_hooked, unended)
    else:
        if former.rules != digest:
            former = replace(_NONE, sandboxes=former.sandboxes)
        unhooked = _ask_runtimes(context, candidates, former, rules, answers)
    unhooked = replace(unhooked, since=rare.now_utc(), rules=digest)
    run.write(Unhooked, "unhooked", unhooked)
    return unhooked


def _find_by_cgroup(
    processes: Processes, candidates: set[str], last_hooked: float, unended: set[str]
) -> Unhooked:
    """Find the candidates that are containers of pods, by their cgroups,
    and those that hold a pod's sandbox.

    Leaves out those of `unended` pods and of our own, which starts before it has installed the
    hook, and those that started just now. A sandbox is the first container of its pod, and runs the
    pause program: one process of one thread. A tenant's container is the first only where that has
    ended. `last_hooked` is when the last one with the hook started that is known from before, for
    it may have ended.
    """
    located = {
        places: _locate(places)
        for places in {process.cgroups for process in processes.by_pid.values()}
    }
    pods: dict[str, dict[str, list[Process]]] = {}
    for process in processes.by_pid.values():
        if (place := located[process.cgroups]) is not None:
            pods.setdefault(place[0], {}).setdefault(place[1], []).append(process)
    our_pod, _ = _locate(system.cgroups(os.getpid())) or ("", "")
    unhooked: dict[str, UnhookedContainer] = {}
    sandboxes: list[str] = []
    last = 0.0
    for uid, containers in pods.items():
        born = {
            name: min(each.starttime for each in inside) / system.TICKS
            for name, inside in containers.items()
        }
        last_hooked = max(
            [last_hooked, *(at for name, at in born.items() if name not in candidates)]
        )
        if uid == our_pod or uid in unended:
            continue
        first = min(born, key=born.__getitem__)
        for name in sorted(candidates & born.keys()):
            init = containers[name][0]
            is_alone = len(containers[name]) == init.threads == 1
            if name == first and is_alone and read_status(init.pid, "SigCgt", 16) == _PAUSE_SIGNALS:
                sandboxes.append(name)
            elif processes.boottime - born[name] > _YOUNG:
                unhooked[name], last = UnhookedContainer(uid=uid), max(last, born[name])
    at = system.unix_time() - processes.boottime + last if last > last_hooked else None
    return replace(
        _NONE, containers=unhooked, sandboxes=sandboxes, last_started_at=at, last_hooked=last_hooked
    )


def _locate(places: Iterable[str]) -> tuple[str, str] | None:
    """Return the UID of a pod and its container, by the cgroups of a process.
    conmon is in no container: None.

    Nor is a cgroup that a user made in that of a service, which may be the user's,
    or a container in its own.
    """
    for place in places:
        for cgroup, container in identity.find_marked(place)[:1]:
            is_pods = identity.find_maker(
                cgroup, container
            ) != "libpod" and container == find_container(place)
            uid = identity.read_pod_uid(cgroup) if is_pods and ".service/" not in cgroup else None
            if uid is not None:
                return uid, container
    return None


def _read_rules(run_dir: str) -> tuple[list[Options], str]:
    """Return which containers should have the hook, and a hash of that,
    which is empty if there are no rules.

    The rules are the options of our hooks.d files with this run directory,
    and the base_runtime_specs.
    """
    entries = [
        entry for path in sorted(engines.list_hooks_dirs()) for entry in hooksd.read_directory(path)
    ]
    parsed = [
        (entry.file, hooksd.parse_options(entry.our_hook)[0])
        for entry in entries
        if entry.our_hook is not None
    ]
    ours = [(file, options) for file, options in parsed if options.run_dir == run_dir]
    named = {spec.path for spec in engines.read_containerd().specs}
    # An unreadable one does not count: containers do not start with it.
    specs = sorted(
        path
        for path in named
        if hooksd.find_our_hooks(system.try_call(hooksd.read_hooks, path) or {})
    )
    text = formats.dumps([[file for file, _ in ours], specs]).encode()
    digest = hashlib.sha256(text).hexdigest()[:16] if ours or specs else ""
    return [options for _, options in ours], digest


def _ask_runtimes(
    context: Context,
    candidates: set[str],
    former: Unhooked,
    rules: list[Options],
    answers: Answers | None,
) -> Unhooked:
    """Find out from the runtimes which candidates run and should have the hook.

    What is `former`, or is in the `answers` of this run, is not asked again.
    """
    run = context.run
    known = {
        container: former.containers[container]
        for container in candidates & former.containers.keys()
    }
    others, sandboxes = (
        candidates.intersection(former.others),
        candidates.intersection(former.sandboxes),
    )
    asked = candidates - known.keys() - others - sandboxes
    installed = find_runtimes() if asked else Runtimes([], [])
    if not installed.roots:
        answers = {}, dict.fromkeys(asked, "no runtime")
    states, unanswered = answers or installed.find_states(asked)
    unchecked = len(asked & unanswered.keys())
    new: dict[str, UnhookedContainer] = {}
    for container in asked & states.keys():
        state = states[container]
        if state.status not in _STARTED:
            continue
        try:
            if is_sandbox(state):
                sandboxes.add(container)
            elif (pod := _match(state, rules, run.path)) is not None:
                new[container] = UnhookedContainer(
                    namespace=pod.namespace, pod=pod.name, name=pod.container
                )
            else:
                others.add(container)
        except (OSError, ValueError):  # for example, its bundle is gone
            unchecked += 1
    # Read the records again: a hook that was running at the first read has
    # written its record by now.
    recorded = {*run.list_names(Index), *run.list_names(Failure)} if new else set()
    containers = {
        **known,
        **{container: pod for container, pod in new.items() if container not in recorded},
    }
    kept = {
        "others": sorted(others),
        "sandboxes": sorted(sandboxes),
        "last_hooked": former.last_hooked,
    }
    return replace(_NONE, containers=containers, unchecked=unchecked, **kept)


def _match(state: State, rules: list[Options], run_dir: str) -> identity.Pod | None:
    """Return the pod of a container that should have the hook, with its names, or None.

    The cgroup that its runtime was asked for counts, since the container can have moved its process
    to another one. Raises OSError, ValueError if its config.json is unreadable.
    """
    path = f"{state.bundle}/config.json"
    whole = files.read_json(path, files.BUNDLE)
    bundle = Config.model_validate(whole)
    places = list_requested(bundle)
    pod = identity.identify_pod(
        state.id, Annotations.model_validate(state.annotations or {}), places
    )
    name_running(pod, state.id, state.bundle, places)
    hooks = hooksd.find_our_hooks(hooksd.list_hooks(path, whole))  # it has the hook
    given = [hooksd.parse_options(hook)[0] for hook in hooks]
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
