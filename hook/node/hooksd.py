# SPDX-License-Identifier: Apache-2.0
"""Finds the callers of the hook, which are files of hooks.d or hooks in a config.json,
and the options that they have.

hooks.d is read like CRI-O, Podman and the NRI hook-injector do, all by the same Go package. With
one invalid file, Podman starts no container, and CRI-O and the hook-injector do not start. A file
whose program is missing, and a link to nothing, are skipped without a message. Source:
oci-hooks(5), pkg/hooks of containers/common; config.md of the runtime specification.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hook import formats, system
from hook.entry import parse
from hook.models import Options
from hook.node import files
from hook.node.models import HookFile, HookProgram, HookWhen
from hook.words import explain_exception, is_invalid

NAME = "resctrl-mon-hook"
PROGRAM = f"{NAME}.pyz"
"""The name of our program in each path by which it is called."""
SYSTEM = "/usr/share/containers/oci/hooks.d"
ADMINISTRATOR = "/etc/containers/oci/hooks.d"
READERS = {
    SYSTEM: "CRI-O, Podman, the NRI hook-injector",
    ADMINISTRATOR: "OpenShift's CRI-O, the NRI hook-injector, podman build; "
    "Podman only if its hooks_dir names it",
}
"""The default directories and their readers.

A file in a later one overrides its namesake in an earlier one.
"""

_STAGES = (
    "createContainer",
    "createRuntime",
    "poststart",
    "poststop",
    "prestart",
    "startContainer",
)
_RULES: dict[str, Callable[[list[Any]], list[Any]]] = {
    "containers": lambda _: [],  # it means nothing to the tools
    "strict": lambda _: [],
    "linger": lambda times: [max(times)],
    "history": lambda paths: [*filter(None, paths)],
    "node": lambda nodes: [*filter(None, nodes)],
}
"""By option, which of the values in several files count, if not all: they must be equal,
and none is the default.
"""
_OURS = re.compile(NAME + "(-[a-z0-9_]+)?([.]pyz)?")
IN_PROGRAM = "hook/__init__.py"
"""A name in the zip of our program."""
LARGEST = 64 << 20
"""Bytes: five times as many as the larger form of the program has."""


# By what every container has for the readers of hooks.d, whatever its author says, and its own
# annotations: of the kubelet, under CRI-O and the hook-injector; and of Podman.
_ALWAYS_THERE = (
    {
        "io.kubernetes.container.hash": "5f3c9d0b",
        "io.kubernetes.container.restartCount": "0",
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "File",
        "io.kubernetes.pod.terminationGracePeriod": "30",
    },
    {"io.container.manager": "libpod"},
)


@dataclass(frozen=True)
class Entry:
    """A file of hooks.d."""

    path: str
    # None if readers reject the file, or if it has the format before 1.0.0, which we do not parse
    file: HookFile | None = None
    # why readers reject it
    problem: str | None = None
    # a problem that readers accept
    remark: str | None = None

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @cached_property
    def our_hook(self) -> HookProgram | None:
        """Return the hook of this file if it calls our program, by its name or by its content."""
        hook = self.file.hook if self.file is not None else None
        if hook is None or _is_ours(hook):
            return hook
        content = system.try_call(files.read, hook.path, LARGEST) or b""
        return hook if IN_PROGRAM.encode() in content and NAME.encode() in content else None


def matches_usually(when: HookWhen | None) -> bool:
    """Return whether a hook is for a container that has no annotations of its own.

    Commands and mounts may be any.

    Source: Match in pkg/hooks/1.0.0/when.go of containers/common.
    """
    when = when or HookWhen()
    patterns = (when.annotations or {}).items()
    for there in _ALWAYS_THERE:
        holds = [kind for kind in (when.always, when.has_bind_mounts) if kind is not None]
        holds += [True] if when.commands else []
        for key, value in patterns:
            holds.append(
                any(_finds(key, name) and _finds(value, text) for name, text in there.items())
            )
        if any(holds) and (when.any_of or all(holds)):
            return True
    return False


def _finds(pattern: str, text: str) -> bool:
    """Return whether a pattern is found in a text,
    or Python does not know its syntax, which is Go's.
    """
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return True


def read_entry(path: str) -> Entry:
    """Parse and validate a file of hooks.d,
    with the checks that its readers make, in their order.
    """
    try:
        # As Go decodes it, which replaces what is invalid UTF-8 in a string.
        content = _name_fields(
            formats.loads(files.read(path, files.CONFIGURATION).decode("utf-8", "replace"))
        )
        if isinstance(content, dict) and content.get("version") in (None, "", "0.1.0"):
            return Entry(path, remark="format before 1.0.0, which newer readers do not support")
        file = HookFile.model_validate(content)
    except (files.Unreadable, ValueError) as error:
        if is_invalid(error):
            return Entry(path, problem=explain_exception(error))
        if getattr(error, "is_missing", False):
            return Entry(
                path, remark="it does not exist, or is a link to nothing, so readers skip it"
            )
        return Entry(path, problem=f"cannot read it: {getattr(error, 'why', error)}")
    if file.hook.path and not os.path.exists(file.hook.path):
        return Entry(
            path, file, remark=f"its program {file.hook.path} is missing, so readers skip the file"
        )
    problems = [] if file.hook.path else ["hook.path is empty"]
    when = file.when or HookWhen()
    patterns = [
        *(text for pair in (when.annotations or {}).items() for text in pair),
        *(when.commands or []),
    ]
    problems += [
        f"{pattern!r} is not a valid regular expression"
        for pattern in patterns
        if _is_refused(pattern)
    ]
    problems += [
        f"stages: unknown stage {stage!r}" for stage in file.stages if stage not in _STAGES
    ]
    return Entry(path, problem=problems[0]) if problems else Entry(path, file)


def _name_fields(content: Any, depth: int = 2) -> Any:  # noqa: ANN401  any JSON
    """Return the fields under their proper names, as Go finds them in upper or lower case,
    without those that are null.

    Only the upper `depth` levels of objects have fields.
    """
    if not isinstance(content, dict) or depth == 0:
        return content
    fields = {
        name.lower(): _name_fields(value, depth - 1)
        for name, value in content.items()
        if value is not None
    }
    return {
        "hasBindMounts" if name == "hasbindmounts" else name: value
        for name, value in fields.items()
    }


def read_directory(directory: str) -> list[Entry]:
    """Return the files of a directory in the order of their hooks; none if it does not exist.

    Raises OSError.
    """
    names = sorted(files.list_if_there(directory), key=str.lower)
    return [read_entry(f"{directory}/{name}") for name in names if name.endswith(".json")]


_FLAGS = "[imsU]*(?:-[imsU]+)?"
_ESCAPE = r"\\(?:[aDdfnrSstvWw\x00-/:-@\[-`{-\x7f]|[Pp](?:[A-Z]|\{\^?\w+\})|x[0-9A-Fa-f]{2}"
_ESCAPE += r"|x\{0*(?:10|[0-9A-Fa-f])?[0-9A-Fa-f]{1,4}\}|0[0-7]{0,2}|[1-7][0-7]{1,2})"
_IN_CLASS = rf"\[:\^?[a-z]+:\]|{_ESCAPE}|[^\\\]]"
_PIECE = re.compile(
    rf"(?P<repeat>(?:[*+?]|\{{\d+(?:,\d*)?\}})\??)|(?P<flags>\(\?{_FLAGS}\))|(?P<open>\((?:\?(?:P?<\w+>|{_FLAGS}:))?)|"
    rf"(?P<close>\))|(?P<or>\|)|\\Q.*?(?:\\E|\Z)|\\[ABbz]|{_ESCAPE}|\[\^?(?:\]|{_IN_CLASS})(?:{_IN_CLASS})*\]|[^\\\[]",
    re.ASCII | re.DOTALL,
)
"""The next piece of a pattern that Go takes. Source: https://github.com/google/re2/wiki/Syntax."""


def _is_refused(pattern: str) -> bool:
    """Return whether Go surely refuses a regular expression.

    It does if a piece is unknown, a parenthesis is alone, or nothing is repeated.
    Lookaround, a condition, a comment and what else Go does not have begin with `(`, and a
    `?` that repeats nothing.
    """
    at, depth, last = 0, 0, "or"
    while at < len(pattern):
        piece = _PIECE.match(pattern, at)
        if piece is None:
            return True
        kind, at = piece.lastgroup or "", piece.end()
        depth += {"open": 1, "close": -1}.get(kind, 0)
        numbers = [int(number) for number in re.findall(r"\d+", piece["repeat"] or "")]
        is_wrong = numbers != sorted(numbers) or max(numbers, default=0) > 1000
        if depth < 0 or is_wrong or (kind == "repeat" and last in ("repeat", "open", "or")):
            return True
        last = kind if kind != "flags" else last.replace("repeat", "")
    return depth > 0


# --- The options of the hook, which nothing but its JSON has


def read_options(
    directories: Iterable[str], list_specs: Callable[[], Iterable[str]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the options that this node's runtimes give to the hook;
    returns them by name, and what is wrong.

    A file in a later directory replaces its namesake in an earlier one. If no file calls the hook,
    the options are those in the base_runtime_specs of containerd. The tools serve the containers of
    all files, and the record of a key has its time to linger and its history: so the longest time
    counts, and the history that any file names. Another option has its default if the files differ.
    What is wrong is a text by the name of the option, or by a path.
    """
    entries: dict[str, Entry] = {}
    problems: dict[str, str] = {}
    for directory in directories:
        try:
            entries.update((entry.name, entry) for entry in read_directory(directory))
        except OSError as error:
            problems[directory] = (
                f"cannot list {directory}: {error.strerror}; it may have the options of the hook"
            )
    for entry in entries.values():
        if entry.problem is not None and NAME in entry.name:
            problems[entry.path] = (
                f"{entry.path}: {entry.problem}; its options of the hook are unknown"
            )
    ours = {entry.path: entry.our_hook for entry in entries.values() if entry.our_hook is not None}
    for path in [] if ours or problems else list_specs():
        ours.update(
            (path, hook) for hook in find_our_hooks(system.try_call(read_hooks, path) or {})
        )
    parsed = [parse_options(hook)[0] for hook in ours.values()]
    values = dict(Options()) if parsed else {}
    for name, default in values.items():
        given = [getattr(options, name) for options in parsed]
        first, *others = _RULES.get(name, list)(given) or [default]
        if all(other == first for other in others):
            values[name] = first
        else:
            differs = f"--{name.replace('_', '-')} differs in {', '.join(ours)}"
            problems[name] = f"{differs}; using the default, {default!r}; remedy: make them agree"
    return values, problems


# --- The hooks in a config.json: that of a container, or a base_runtime_spec of containerd


def read_hooks(path: str) -> dict[str, list[HookProgram]]:
    """Return the hooks of each stage. Raises files.Unreadable, also if the hooks are invalid."""
    return list_hooks(path, files.read_json(path, files.BUNDLE))


def list_hooks(path: str, config: Any) -> dict[str, list[HookProgram]]:  # noqa: ANN401  any JSON
    """Return the hooks of each stage in `config`, which was read from this path.

    Raises files.Unreadable.
    """
    try:
        stages = config.get("hooks") or {}
        return {
            stage: [HookProgram.model_validate(hook) for hook in hooks or []]
            for stage, hooks in stages.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise files.Unreadable(path, f"invalid hooks: {error!r}") from None


def calls_ours(hooks: dict[str, list[HookProgram]]) -> bool:
    """Return whether a hook of any stage calls our program."""
    return any(_is_ours(hook) for of_stage in hooks.values() for hook in of_stage)


def find_our_hooks(hooks: dict[str, list[HookProgram]]) -> list[HookProgram]:
    """Return the createRuntime hooks that call our program."""
    return [hook for hook in hooks.get("createRuntime", []) if _is_ours(hook)]


def parse_options(hook: HookProgram) -> tuple[Options, list[str]]:
    """Return the options of our hook, and complaints about them.

    They follow its name and the stage.
    """
    return parse(list(hook.args or [])[2:])


def _is_ours(hook: HookProgram) -> bool:
    """Return whether the name of the program, or the one that it is called by, is ours."""
    return any(
        _OURS.fullmatch(os.path.basename(name)) for name in (hook.path, *(hook.args or [])[:1])
    )
