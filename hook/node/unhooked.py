# SPDX-License-Identifier: Apache-2.0
"""Finds running containers that never got the hook, for example because the hook-injector is not running.

The hook is not called for them, so it cannot report them: reconcile does. A candidate is a container whose own cgroup
has a process and which has no record. Only candidates are looked up in the OCI runtimes. The result is saved, because
IDs are unique: a pod's sandbox, or a container that filters exclude, is looked up once.
"""

from __future__ import annotations

import hashlib

from hook.base import cgroups, jsontext, system
from hook.base.models import Annotations, Config, Failure, Index, State, Unhooked, UnhookedContainer, ValidationError
from hook.node import config, door, hooksd, runtimes
from hook.node.hooksd import PROGRAM, find_arguments, list_hooks, read_hooks
from hook.stages import identity
from hook.stages.context import parse
from hook.state.records import Records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hook.base.container_tasks import Processes
    from hook.base.models import Options
    from hook.node.hooksd import Entry
    from hook.stages.context import Context
    from hook.stages.identity import Pod

_STARTED = ("running", "paused")  # a `created` one may still run its createRuntime hooks


def find_unhooked(context: Context, processes: Processes) -> Unhooked | None:
    """Find them, and save the result for `list`, `doctor`, `metrics` and the next call. Raises HookError, OSError.

    Returns None and saves nothing if no file of ours is visible, for example in a container without hooks.d.
    """
    rules = _Rules(context.options)
    if not rules.exist:
        context.run.remove(Unhooked)
        return None
    with Records(context.run.path) as records:
        former = records.glance(Unhooked)
        running = set(map(cgroups.container_id, processes.cgroups()))
        recorded = {*records.names(Index), *records.names(Failure)}
        candidates = {it for it in running if it is not None} - recorded
        same = former is not None and former.rules == rules.text
        known = {it: former.containers[it] for it in candidates & former.containers.keys()} if former and same else {}
        others = candidates.intersection(former.others) if former and same else set()
        found, unchecked = _ask_runtimes(candidates - known.keys() - others, rules, others)
        # Read the records again: a hook that was running at the first read has written its record by now.
        fresh = {*records.names(Index), *records.names(Failure)} if found else set()
    found = {**known, **{container: pod for container, pod in found.items() if container not in fresh}}
    seen = Unhooked(
        since=system.now_utc(), containers=found, unchecked=unchecked, rules=rules.text, others=sorted(others)
    )
    context.run.write(Unhooked, "", seen)
    return seen


def _ask_runtimes(candidates: set[str], rules: _Rules, others: set[str]) -> tuple[dict[str, UnhookedContainer], int]:
    """Those that run and should have the hook, and how many could not be checked. Adds the rest to `others`."""
    installed = runtimes.find_runtimes()
    if candidates and not installed.roots:
        return {}, len(candidates)
    states, unanswered = installed.find_states(candidates)
    unchecked = len(unanswered)
    found: dict[str, UnhookedContainer] = {}
    for container, state in states.items():
        try:
            checked = State.model_validate(state)
            if checked.status not in _STARTED:
                continue
            pod = None if runtimes.is_sandbox(checked) else rules.match(checked)
            if pod is None:
                others.add(container)
            else:
                found[container] = UnhookedContainer(namespace=pod.namespace, pod=pod.name, name=pod.container)
        except (ValidationError, OSError, ValueError):  # for example, its bundle is gone
            unchecked += 1
    return found, unchecked


class _Rules:
    """Which containers should have the hook, by our files in hooks.d, and by base_runtime_specs.

    Only files with our run directory count, and of containerd's those at the usual paths: the timer's reconcile may not
    look at its process, and two runs have to go by the same rules. `text`: a hash of these rules.
    """

    def __init__(self, options: Options) -> None:
        directories = {
            *hooksd.READERS,
            *config.read_crio_hooks_dirs(),
            *config.read_podman_hooks_dirs(),
        }
        entries = [entry for directory in sorted(directories) for entry in hooksd.read_directory(directory)]
        self._files = [it for it in entries if it.calls(PROGRAM) and _parse_options(it).run_dir == options.run_dir]
        self._run_dir = options.run_dir
        specs = sorted({spec.path for spec in config.read_containerd(is_running=False).specs if _calls_hook(spec.path)})
        self.exist = bool(self._files or specs)
        self.text = hashlib.sha256(jsontext.dumps([[it.file for it in self._files], specs]).encode()).hexdigest()[:16]

    def match(self, state: State) -> Pod | None:
        """The pod of a container that should have the hook, else None.

        By the cgroup that its runtime was asked for: the one that its process is in may be of the container's making.
        Raises OSError, ValueError if its config.json is unreadable.
        """
        path = f"{state.bundle}/config.json"
        found = door.read_json(path, door.BUNDLE)
        config = Config.model_validate(found)
        place = cgroups.from_config(config.linux.cgroups_path if config.linux is not None else None)
        places = [place] if place is not None else []
        pod = identity.pod_of(state.id, Annotations.model_validate(state.annotations or {}), places)
        given = [parse(it[2:])[0] for it in find_arguments(list_hooks(path, found))]  # it has the hook but no record
        options = [it for it in given if it.run_dir == self._run_dir]
        if pod.is_podmans or pod.uid is not None:  # else its runtime reads no hooks.d
            options += map(_parse_options, self._files)
        concerned = [it for it in options if identity.concerns(it, is_podmans=pod.is_podmans)]
        return pod if any(identity.is_wanted(it, config.annotations or {}, pod) for it in concerned) else None


def _parse_options(entry: Entry) -> Options:
    arguments: Sequence[str] = (entry.file.hook.args if entry.file else None) or []
    return parse(list(arguments)[2:])[0]


def _calls_hook(spec: str) -> bool:
    """Whether a base_runtime_spec has our hook. False if it is unreadable: containers do not start with it."""
    try:
        return bool(find_arguments(read_hooks(spec)))
    except (OSError, ValueError):
        return False
