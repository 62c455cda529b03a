# SPDX-License-Identifier: Apache-2.0
"""Lists the completions of a command line, for the scripts of packaging/completions.

Keys, pods, containers and namespaces are those on record. Tenants choose such names, and a shell inserts what we print:
so only plain names are offered.
"""

from __future__ import annotations

import re
from itertools import islice

from hook.base.errors import HookError
from hook.base.explain import name_pod
from hook.base.models import KeyState, Options
from hook.cli.command_line import Argument, list_arguments, list_options
from hook.cli.options import ARGUMENTS, History
from hook.cli.verbs import VERBS
from hook.state.records import Records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST = 1000  # keys or jobs are read: a person waits
_NAME = "[A-Za-z0-9][A-Za-z0-9_.-]{0,252}"
_PLAIN = re.compile(f"{_NAME}(/{_NAME})?")


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
            from hook.observe.jobs import list_recent_names

            names = list_recent_names(given.get("--history", History().history), _MOST)
        else:
            names = _list_recorded_names(argument.value, given.get("--run-dir", Options().run_dir))
        yield from filter(_PLAIN.fullmatch, names)
    except (HookError, OSError):
        return


def _list_recorded_names(kind: str, run_dir: str) -> Iterator[str]:
    """The names of keys (KEY) with their pods and containers, or of namespaces (NS)."""
    if kind not in ("KEY", "NS"):
        return
    with Records(run_dir) as records:
        for key in islice(records.names(KeyState), _MOST):
            state = records.state(key)
            if kind == "NS":
                yield (isinstance(state, KeyState) and state.pod_namespace) or ""
                continue
            yield key
            if isinstance(state, KeyState):
                yield from filter(None, (it.name for it in state.members.values()))
                yield from filter(None, (state.pod_name, name_pod(state.pod_namespace, state.pod_name)))
