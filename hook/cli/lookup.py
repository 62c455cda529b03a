# SPDX-License-Identifier: Apache-2.0
"""Finds the key that a person names, and lists the completions of a command line (packaging/completions).

Keys, pods, containers and namespaces are those on record. Tenants choose such names, and a shell inserts what we print:
so only plain names are offered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from hook import names
from hook.cli.command_line import Argument, list_arguments, list_options
from hook.cli.options import ARGUMENTS, History
from hook.cli.verbs import VERBS, Usage
from hook.errors import HookError
from hook.explain import list_pod_names, name_first, who
from hook.models import Failure, KeyState, Options
from hook.node.records import Broken, Records, glance_index
from hook.resctrl import Resctrl
from hook.show import snapshot
from hook.show.history import list_recent_names
from hook.show.lists import NOTHING, format_name
from hook.show.snapshot import SeenKey

_MOST = 1000  # keys or jobs are read: a person waits
_NAME = "[A-Za-z0-9][A-Za-z0-9_.-]{0,252}"
_PLAIN = re.compile(f"{_NAME}(/{_NAME})?")


def find_key(records: Records, kernel: Resctrl, name: str) -> SeenKey:
    """Find the key with this name, or with the only name that begins so. Usage: no key, or several, which it names."""
    found = _match_names(records, name)
    if len(found) > 1:
        raise Usage(f"{name[:80]!r} is ambiguous: {name_first(found.values())}")
    for only, called in found.items():
        key = snapshot.read_key(records, kernel, only, records.state(only))
        if isinstance(key, SeenKey):
            return key
        if isinstance(key, Broken):
            raise Usage(f"{key.file}: {key.problem}")
        if isinstance(failure := records.failure(only), Failure):
            why = f"{failure.reason}: {failure.problem}"
            raise Usage(f"container {called} is not monitored: {why}; see list unmonitored")
    raise Usage(f"no key, pod or container matches {name[:80]!r}")


def _match_names(records: Records, name: str) -> dict[str, str]:
    """Find the keys, and the containers that are not monitored, with this name, each with its name for people.

    If there are none: those whose name begins so. A name counts for those that exist now, if there are any: Podman may
    give it again.
    """
    known = records.names(KeyState)
    key = name if name in known else glance_index(records, name) if names.is_container_id(name) else None
    if key is not None or not name:
        return {key: key} if key is not None else {}
    called = list[tuple[str, str, bool]]()  # what, one of its names, whether it exists now
    shown = dict[str, str]()
    for key in known:
        state = records.state(key)
        shown[key] = key
        if isinstance(state, KeyState):
            shown[key] = who(key, state.pod_namespace, state.pod_name, state.name)
        is_present = not isinstance(state, KeyState) or state.completed_at is None
        called += [(key, text, is_present) for text in _list_names(key, state)]
    for container in records.names(Failure):
        failure = records.failure(container)
        if isinstance(failure, Failure) and not failure.monitored:
            what = failure.key if failure.key in shown else container
            shown.setdefault(what, who(container, failure.namespace, failure.pod, failure.name))
            pod = list_pod_names(failure.namespace, failure.pod)
            called += [(what, text, True) for text in (container, failure.name, *pod) if text]
    matching = (
        [what for what, text, is_present in called if text == name and is_present]
        or [what for what, text, _ in called if text == name]
        or [what for what, text, _ in called if text.startswith(name)]
    )
    return {what: shown[what] for what in dict.fromkeys(matching)}


def _list_names(key: str, state: KeyState | Broken | None) -> Iterator[str]:
    """All names by which a key can be found."""
    yield key
    if isinstance(state, KeyState):
        shown = format_name(SeenKey(state, [], {}))
        named = (state.name, *(it.name for it in state.members.values()), shown if shown != NOTHING else None)
        yield from (*list_pod_names(state.pod_namespace, state.pod_name), *state.members, *filter(None, named))


# --- Completion


def list_completions(line: str) -> list[str]:
    """The completions of the last word of a command line, each with its meaning after a tab."""
    start, _, current = line.rpartition(" ")
    _, *before = start.split() or [""]
    commands = [(name, ARGUMENTS[verb.form.__name__][0]) for name, verb in VERBS.items()]
    if not before:
        found = [*commands, ("help", "show help"), ("--help", "show help"), ("--version", "show the version")]
    elif before == ["help"]:
        found = [*commands, ("hook", "what runtimes call")]
    else:
        found = [*_list_words(before, current)]
    # Nothing for `--run-dir=`, so that the shell offers files.
    offered = {it for it in found if it[0].startswith(current) and not (it[0] == current and current.endswith("="))}
    return [f"{word}\t{meaning}" for word, meaning in sorted(offered)]


def _list_words(before: list[str], current: str) -> Iterator[tuple[str, str]]:
    """The arguments of a command, and the values of the one that the last word belongs to."""
    verb = VERBS.get(before[0])
    arguments = [*list_arguments(verb), *list_options(verb.options)] if verb is not None else []
    former = [it for it in arguments if it.is_option and it.value and it.word == before[-1]]
    for it in former or arguments:
        start = f"{it.word}=" if it.is_option and not former else ""
        values = [*it.choices, *(_list_values(it, before) if current.startswith(start) else ())]
        words = [start + value for value in values] or [it.word + "=" * bool(it.value)] * it.is_option
        yield from ((word, it.meaning) for word in words)


def _list_values(argument: Argument, before: list[str]) -> Iterator[str]:
    """The plain names on record that an argument takes; none if they cannot be read."""
    given = dict(it.partition("=")[::2] for it in before)
    try:
        if argument.value == "NAME":
            yield from filter(_PLAIN.fullmatch, list_recent_names(given.get("--history", History().history), _MOST))
        elif argument.value in ("KEY", "NS"):
            found = _list_recorded_names(argument.value, given.get("--run-dir", Options().run_dir))
            yield from filter(_PLAIN.fullmatch, found)
    except (HookError, OSError):
        return


def _list_recorded_names(kind: str, run_dir: str) -> Iterator[str]:
    """The names of keys (KEY) with their pods and containers, or of namespaces (NS)."""
    with Records(run_dir) as records:
        for key in islice(records.names(KeyState), _MOST):
            state = records.state(key)
            if kind == "NS":
                yield (isinstance(state, KeyState) and state.pod_namespace) or ""
            else:
                containers = state.members if isinstance(state, KeyState) else {}
                yield from (it for it in _list_names(key, state) if it not in containers)
