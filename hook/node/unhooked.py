# SPDX-License-Identifier: Apache-2.0
"""Finds containers that run and are in no key: those never hooked, and those that --adopt takes.

The hook is not called for them, for example because the hook-injector is not running, so it cannot
report them: reconcile does. The result is saved, because IDs are unique: a pod's sandbox, or a
container that filters exclude, is looked up once in the OCI runtimes. In the chart's containers,
which see no runtime, the kernel tells a pod's sandbox from its containers.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from hook import conmon, formats, identity, names, rare, store, system
from hook.models import Annotations, Config, Failure, Index, Options, State
from hook.node import engines, files, hooksd
from hook.node.models import Unhooked, UnhookedContainer
from hook.node.naming import name_running
from hook.node.processes import Process, Processes, find_container, list_requested, read_status
from hook.node.runtimes import Answers, find_runtimes, list_adoptable
from hook.validation import replace

if TYPE_CHECKING:
    from hook.context import Context

_NONE = Unhooked(since="", containers={}, unchecked=0, rules="", others=[])
_STARTED = ("running", "paused")  # a `created` one may still run its createRuntime hooks
_YOUNG = 60.0  # seconds for which a container may still run these, where no runtime can be asked
# SIGINT, SIGTERM, SIGCHLD: those that the pause program of Kubernetes catches.
_PAUSE_SIGNALS = 0x14002

ListStates = Callable[[Collection[str]], Answers]


class Candidates:
    """The containers that run and are members of no key, about which the runtimes are asked once.

    --adopt brings in those that are `running`. Of these, the ones were never hooked that have no
    record, and that the hook is for. Without --adopt, of those in a cgroup that is named after them
    only the ones are asked about that have no record, and are not known from an earlier call.
    """

    def __init__(
        self,
        context: Context,
        processes: Processes,
        members: Collection[str] = (),
        asks: ListStates | None = None,
    ) -> None:
        """`asks` is that of --adopt: it asks about all containers but those that it is given."""
        self._context = context
        self._processes = processes
        self._members = members
        self._asks = asks
        self._former = context.run.glance(Unhooked, "unhooked") or _NONE

    @cached_property
    def running(self) -> list[State]:
        """The containers with a process, as their runtimes know them, without sandboxes of pods."""
        return list_adoptable(self._answers[0])

    @property
    def unanswered(self) -> dict[str, str]:
        """By container, or by root directory, why no runtime answered."""
        return self._answers[1]

    @cached_property
    def _answers(self) -> Answers:
        if self._asks is not None:
            return self._asks({*self._members, *self._former.sandboxes})
        asked = self._list_new()
        return find_runtimes().find_states(asked) if asked else ({}, {})

    @cached_property
    def _unrecorded(self) -> set[str]:
        """The containers with a process in a cgroup that is named after them, and no record."""
        run, cgroups = self._context.run, self._processes.cgroups
        marked = {container for place in cgroups for _, container in identity.find_marked(place)}
        named = marked.union(filter(None, map(find_container, cgroups)))
        return named.difference(store.list_records(run, Index), store.list_records(run, Failure))

    @cached_property
    def _rules(self) -> tuple[list[Options], str]:
        """Which containers should have the hook, as from _read_rules; read if one has no record."""
        return (
            _read_rules(self._context.options.run_dir)
            if self._unrecorded
            else ([], self._former.rules)
        )

    @cached_property
    def _known(self) -> Unhooked:
        """What is known from an earlier call; of one by other rules only the sandboxes."""
        former = self._former
        return (
            former if former.rules == self._rules[1] else replace(_NONE, sandboxes=former.sandboxes)
        )

    def _list_new(self) -> set[str]:
        known = self._known
        return self._unrecorded.difference(known.containers, known.others, known.sandboxes)

    def find_unhooked(self) -> Unhooked | None:
        """Find the containers that never got the hook, and save them for others to show.

        Raises HookError, OSError. Returns None and saves nothing if there are some without a
        record, and neither our files nor the kernel can say whether they should have the hook.
        """
        run, options, digest = self._context.run, self._context.options, self._rules[1]
        if self._unrecorded and not digest:
            # Neither hooks.d nor a runtime is visible, as in the chart's containers. All containers
            # of pods should have the hook then, unless it has filters, which only the runtime could
            # apply.
            if (
                find_runtimes().roots
                or options.namespace
                or options.annotation
                or options.monitor != "all"
            ):
                run.remove(Unhooked, "unhooked")
                return None
            # A container that came and went between two looks, as a Job's, has left its key's
            # record.
            left = [key for key in store.list_states(run) if key.kind == "pod" and not key.members]
            last_hooked = max(
                [self._former.last_hooked, *(key.created_boottime or 0.0 for key in left)]
            )
            # While that key has not ended, what runs in its pod has outlived a container that had
            # the hook.
            unended = {key.key for key in left if key.completed_at is None}
            unhooked = _find_by_cgroup(self._processes, self._unrecorded, last_hooked, unended)
        else:
            unhooked = self._judge()
        unhooked = replace(unhooked, since=rare.now_utc(), rules=digest)
        run.write(Unhooked, "unhooked", unhooked)
        return unhooked

    def _judge(self) -> Unhooked:
        """Judge by their runtimes which containers without a record should have the hook."""
        run, former, unrecorded, new = (
            self._context.run,
            self._known,
            self._unrecorded,
            self._list_new(),
        )
        known = {
            container: former.containers[container]
            for container in unrecorded & former.containers.keys()
        }
        others, sandboxes = (
            unrecorded.intersection(former.others),
            unrecorded.intersection(former.sandboxes),
        )
        unhooked, unchecked = self._judge_new(new, others, sandboxes) if new else ({}, 0)
        # Read the records again: --adopt, or a hook that was running at the first read, has written
        # some by now.
        recorded = (
            {*store.list_records(run, Index), *store.list_records(run, Failure)}
            if unhooked
            else set()
        )
        containers = {
            **known,
            **{container: pod for container, pod in unhooked.items() if container not in recorded},
        }
        kept = {
            "others": sorted(others),
            "sandboxes": sorted(sandboxes),
            "last_hooked": former.last_hooked,
        }
        return replace(_NONE, containers=containers, unchecked=unchecked, **kept)

    def _judge_new(
        self, new: set[str], others: set[str], sandboxes: set[str]
    ) -> tuple[dict[str, UnhookedContainer], int]:
        """Return which new containers should have the hook, and how many could not be checked.

        The rest of those that run are added to `others` and `sandboxes`.
        """
        states, running = self._answers[0], {state.id for state in self.running}
        unhooked, unchecked = dict[str, UnhookedContainer](), len(new & self.unanswered.keys())
        if not (states or unchecked or find_runtimes().roots):
            # Where there is a runtime, what it does not have is of another tool.
            return unhooked, len(new)
        for container in new & states.keys():
            state = states[container]
            if state.status not in _STARTED or not state.pid:
                continue
            try:
                if container not in running:
                    sandboxes.add(container)
                elif (pod := _match(state, self._rules[0], self._context.run.path)) is not None:
                    unhooked[container] = UnhookedContainer(
                        namespace=pod.namespace, pod=pod.name, name=pod.container
                    )
                else:
                    others.add(container)
            except (OSError, ValueError):  # for example, its bundle is gone
                unchecked += 1
        return unhooked, unchecked


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
            is_pods = names.find_maker(
                cgroup, container
            ) != "libpod" and container == find_container(place)
            uid = names.read_pod_uid(cgroup) if is_pods and ".service/" not in cgroup else None
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
        names.concerns(options.containers, is_podmans=pod.is_podmans)
        and not conmon.leaves_out(options, pod)
        and identity.is_wanted(options, bundle.annotations or {}, pod)
        for options in candidates
    )
    return pod if is_meant else None
