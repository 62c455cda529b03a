# SPDX-License-Identifier: Apache-2.0
"""Finds running containers that never got the hook, for example because the hook-injector is not running.

The hook is not called for them, so it cannot report them: reconcile does. A candidate is a container whose own cgroup
has a process and which has no record. Only candidates are looked up in the OCI runtimes. The result is saved, because
IDs are unique: a pod's sandbox, or a container that filters exclude, is looked up once.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from hook.base import cgroups, jsontext, system
from hook.base.container_tasks import Processes
from hook.base.models import Annotations, Config, Failure, Index, Options, State, Unhooked, UnhookedContainer
from hook.node import config, door, hooksd, runtimes
from hook.node.hooksd import find_own_hooks, list_hooks, parse_options, read_hooks
from hook.stages import identity
from hook.stages.context import Context
from hook.stages.identity import Pod
from hook.state.records import Records

_STARTED = ("running", "paused")  # a `created` one may still run its createRuntime hooks


def find_unhooked(context: Context, processes: Processes) -> Unhooked | None:
    """Find them, and save the result for `list`, `doctor`, `metrics` and the next call. Raises HookError, OSError.

    Returns None and saves nothing if no file of ours is visible, for example in a container without hooks.d.
    """
    rules = _read_rules(context.options.run_dir)
    if not rules.text:
        context.run.remove(Unhooked)
        return None
    with Records(context.run.path) as records:
        former = records.glance(Unhooked)
        if former is None or former.rules != rules.text:
            former = Unhooked(since="", containers={}, unchecked=0, rules=rules.text, others=[])
        running = filter(None, map(cgroups.container_id, processes.cgroups()))
        candidates = {*running} - {*records.names(Index), *records.names(Failure)}
        known = {it: former.containers[it] for it in candidates & former.containers.keys()}
        others = candidates.intersection(former.others)
        found, unchecked = _ask_runtimes(candidates - known.keys() - others, rules, others)
        # Read the records again: a hook that was running at the first read has written its record by now.
        fresh = {*records.names(Index), *records.names(Failure)} if found else set()
    found = {**known, **{container: pod for container, pod in found.items() if container not in fresh}}
    seen = Unhooked(
        since=system.now_utc(), containers=found, unchecked=unchecked, rules=rules.text, others=sorted(others)
    )
    context.run.write(Unhooked, "", seen)
    return seen


class _Rules(NamedTuple):
    """Which containers should have the hook: by the options of our hooks.d files, and by base_runtime_specs.

    Only files with our `run_dir` count, and of containerd's those at the usual paths: the timer's reconcile may not
    look at its process, and two runs have to go by the same rules. `text`: a hash of the rules; empty: there are none.
    """

    run_dir: str
    options: list[Options]
    text: str


def _read_rules(run_dir: str) -> _Rules:
    directories = {*hooksd.READERS, *config.read_crio_hooks_dirs(), *config.read_podman_hooks_dirs()}
    entries = [entry for directory in sorted(directories) for entry in hooksd.read_directory(directory)]
    parsed = [(it.file, parse_options(it.own)[0]) for it in entries if it.own is not None]
    ours = [(file, options) for file, options in parsed if options.run_dir == run_dir]
    specs = sorted({it.path for it in config.read_containerd(is_running=False).specs if _calls_hook(it.path)})
    text = jsontext.dumps([[file for file, _ in ours], specs]).encode()
    return _Rules(run_dir, [it for _, it in ours], hashlib.sha256(text).hexdigest()[:16] if ours or specs else "")


def _calls_hook(spec: str) -> bool:
    """Whether a base_runtime_spec has our hook. False if it is unreadable: containers do not start with it."""
    try:
        return bool(find_own_hooks(read_hooks(spec)))
    except OSError:
        return False


def _ask_runtimes(candidates: set[str], rules: _Rules, others: set[str]) -> tuple[dict[str, UnhookedContainer], int]:
    """Those that run and should have the hook, and how many could not be checked. Adds the rest to `others`."""
    installed = runtimes.find_runtimes()
    states, unanswered = installed.find_states(candidates) if installed.roots else ({}, candidates)
    unchecked = len(unanswered)
    found: dict[str, UnhookedContainer] = {}
    for container, state in states.items():
        checked = State.model_validate(state)
        if checked.status not in _STARTED:
            continue
        try:
            pod = None if runtimes.is_sandbox(checked) else _match(checked, rules)
        except (OSError, ValueError):  # for example, its bundle is gone
            unchecked += 1
            continue
        if pod is None:
            others.add(container)
        else:
            found[container] = UnhookedContainer(namespace=pod.namespace, pod=pod.name, name=pod.container)
    return found, unchecked


def _match(state: State, rules: _Rules) -> Pod | None:
    """The pod of a container that should have the hook, else None.

    By the cgroup that its runtime was asked for: the one that its process is in may be of the container's making.
    Raises OSError, ValueError if its config.json is unreadable.
    """
    path = f"{state.bundle}/config.json"
    whole = door.read_json(path, door.BUNDLE)
    bundle = Config.model_validate(whole)
    place = cgroups.from_config(bundle.linux.cgroups_path if bundle.linux is not None else None)
    said = Annotations.model_validate(state.annotations or {})
    pod = identity.pod_of(state.id, said, [place] if place is not None else [])
    given = [parse_options(it)[0] for it in find_own_hooks(list_hooks(path, whole))]  # it has the hook but no record
    options = [it for it in given if it.run_dir == rules.run_dir]
    if pod.is_podmans or pod.uid is not None:  # else its runtime reads no hooks.d
        options += rules.options
    concerned = [it for it in options if identity.concerns(it, is_podmans=pod.is_podmans)]
    return pod if any(identity.is_wanted(it, bundle.annotations or {}, pod) for it in concerned) else None
