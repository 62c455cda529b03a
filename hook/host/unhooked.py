"""Containers that run without ever having been hooked: the injector is down, or nobody reads the hooks.d file.

The hook cannot say so, for it is never called. So reconcile looks: a running process in a container's own cgroup, whose
container is on no record, is a candidate, and only candidates are asked about, of the OCI runtimes. The answer is kept,
since an ID is never given twice: a pod's sandbox, or a container that filters leave out, is asked about once.
"""

from __future__ import annotations

import hashlib

from hook.base import cgroups, container_tasks, jsontext, procfs, system
from hook.base.models import Annotations, State, ValidationError
from hook.host import containerd, hooksd, oci_runtimes, runtime_config, would_inject
from hook.host.paths import PROGRAM
from hook.stages import identity
from hook.stages.options import parse
from hook.state.records import UNHOOKED, Records, Unhooked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from hook.base.models import Options
    from hook.host.hooksd import Entry
    from hook.stages.context import Node
    from hook.stages.identity import Pod

_STARTED = ("running", "paused")  # one that is created may still be in its createRuntime hooks
_TEMPORARY = f".{UNHOOKED}.tmp"


def look(node: Node) -> Unhooked | None:
    """Look, and keep what was found for `list`, `doctor`, `metrics` and the next look. HookError, OSError.

    None, and nothing is kept, where no file of ours can be seen: in a container, say, where hooks.d is not mounted.
    """
    rules = _Rules(node.options)
    if not rules.are_there:
        system.unlink(UNHOOKED, node.run.descriptor)
        return None
    with Records(node.run.path) as records:
        former = records.unhooked()
        candidates = _running() - {*records.indexed(), *records.failed()}
        same = former is not None and former.rules == rules.text
        known = {it: former.containers[it] for it in candidates & former.containers.keys()} if former and same else {}
        others = candidates & former.others if former and same else set()
        found, unchecked = _ask(candidates - known.keys() - others, rules, others)
        # Again: a hook that was at work when we looked first has put its container on record by now.
        fresh = {*records.indexed(), *records.failed()} if found else set()
    found = {**known, **{container: pod for container, pod in found.items() if container not in fresh}}
    seen = Unhooked(system.now_utc(), found, unchecked, rules.text, frozenset(others))
    _keep(node, seen)
    return seen


def _running() -> set[str]:
    """The containers whose own cgroup a process is in, as far as cgroups are named by IDs."""
    found = map(cgroups.container_id, container_tasks.all_cgroups())
    return {container for container in found if container is not None}


def _ask(candidates: set[str], rules: _Rules, others: set[str]) -> tuple[dict[str, dict[str, str | None]], int]:
    """Who of these runs, is meant to be hooked and is not; and how many could not be told of. Adds to `others`."""
    if candidates and not oci_runtimes.has_roots():
        return {}, len(candidates)
    states, untold = oci_runtimes.find_states(candidates)
    unchecked = len(untold)
    found: dict[str, dict[str, str | None]] = {}
    for container, state in states.items():
        try:
            checked = State.model_validate(state)
            if checked.status not in _STARTED:
                continue
            if oci_runtimes.is_sandbox(checked) or not rules.mean(checked):
                others.add(container)
            else:
                pod = _pod_of(checked)
                found[container] = {"namespace": pod.namespace, "pod": pod.name, "name": pod.container}
        except (ValidationError, OSError, ValueError):  # its bundle is gone, say
            unchecked += 1
    return found, unchecked


def _pod_of(state: State) -> Pod:
    said = Annotations.model_validate(state.annotations or {})
    return identity.pod_of(state.id, said, procfs.cgroups(state.pid or 0))


class _Rules:
    """Which containers are meant to be hooked: what our files in hooks.d say, whether anybody reads them or not.

    Only those whose records are in our run directory. `text`: changes with them.
    """

    def __init__(self, options: Options) -> None:
        directories = {*hooksd.READERS, *runtime_config.of_crio(), *runtime_config.of_podman()}
        entries = [entry for directory in sorted(directories) for entry in hooksd.read_directory(directory)]
        self._files = [it for it in entries if it.calls(PROGRAM) and _options_of(it).run_dir == options.run_dir]
        self._run_dir = options.run_dir
        specs = sorted({spec.place for spec in containerd.look().specs if _calls_us(spec.place)})
        self.are_there = bool(self._files or specs)
        self.text = hashlib.sha256(jsontext.dumps([[it.file for it in self._files], specs]).encode()).hexdigest()[:16]

    def mean(self, state: State) -> bool:
        """Whether a container is meant to be hooked. OSError, ValueError where its config.json cannot be read."""
        told, pod = would_inject.told(f"{state.bundle}/config.json"), _pod_of(state)
        matching = [it for it in self._files if it.file and hooksd.why_not(it.file, told.subject) is None]
        given = [parse(list(arguments)[2:])[0] for arguments in told.given]  # it has the hook, and yet no record
        options = [*map(_options_of, matching), *(it for it in given if it.run_dir == self._run_dir)]
        concerned = [it for it in options if identity.concerns(it, is_podmans=pod.is_podmans)]
        return any(identity.is_wanted(it, told.annotations, pod) for it in concerned)


def _options_of(entry: Entry) -> Options:
    arguments: Sequence[str] = (entry.file.hook.args if entry.file else None) or []
    return parse(list(arguments)[2:])[0]


def _calls_us(spec: str) -> bool:
    """Whether a base_runtime_spec has our hook; one that cannot be read has not, for containers fail with it."""
    try:
        return bool(would_inject.calls(spec))
    except (OSError, ValueError):
        return False


def _keep(node: Node, seen: Unhooked) -> None:
    """Write the file whole: a reader, or a crash, sees what was there before or all of this."""
    record: dict[str, Any] = {**vars(seen), "others": sorted(seen.others)}
    system.write_new(_TEMPORARY, jsontext.dumps(record) + "\n", node.run.descriptor)
    try:
        system.rename(_TEMPORARY, UNHOOKED, node.run.descriptor)
    except FileNotFoundError:  # another reconcile has renamed it: what that found will do
        pass
