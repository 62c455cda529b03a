# SPDX-License-Identifier: Apache-2.0
"""Finds the callers of the hook: the files of hooks.d, and the hooks in a config.json.

hooks.d is read like CRI-O, Podman and the NRI hook-injector do, all by the same Go package. With one invalid file,
Podman starts no container, and CRI-O and the hook-injector do not start. A file whose program is missing, and a link to
nothing, are skipped without a message.
Source: oci-hooks(5), pkg/hooks of containers/common; config.md of the runtime specification.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from hook import jsontext
from hook.entry import parse
from hook.explain import explain_invalid
from hook.models import Options, ValidationError
from hook.node import files
from hook.node.models import HookFile, HookProgram, HookWhen

PROGRAM = "resctrl-mon-hook.pyz"
"""The name of our program in each path by which it is called."""
SYSTEM = "/usr/share/containers/oci/hooks.d"
ADMINISTRATOR = "/etc/containers/oci/hooks.d"
READERS = {
    SYSTEM: "CRI-O, Podman, the NRI hook-injector",
    ADMINISTRATOR: "OpenShift's CRI-O, the NRI hook-injector, podman build; not Podman, unless hooks_dir in its "
    "containers.conf names it",
}
"""The default directories and their readers. A file in a later one overrides its namesake in an earlier one."""

_STAGES = ("createContainer", "createRuntime", "poststart", "poststop", "prestart", "startContainer")
_OLD_VERSIONS = (None, "", "0.1.0")
# Regular expressions with the same meaning in Go and Python, except $, which in Python also matches before a last \n.
_ESCAPE = r"\\[dDwW!-/:-@\[-`{-~]"
_CLASS = rf"\[\^?(?:(?!--|&&|~~|\|\|)[^][\\^]|{_ESCAPE})+\]"
_REPEAT = r"(?:[*+?]|\{\d{1,3}(?:,\d{0,3})?\})\??"
_SHARED = rf"(?a)(?:(?:[^][\\(){{}}*+?|^$]|{_ESCAPE}|{_CLASS}|\))(?:{_REPEAT})?|\((?:\?:)?|[|^$]|\\[bB])*"


@dataclass(frozen=True)
class Entry:
    """A file of hooks.d. `problem`: why readers reject it; `remark`: a problem that they accept.

    `file`: None if it is rejected, or in the format before 1.0.0, which is not parsed.
    """

    path: str
    file: HookFile | None = None
    problem: str | None = None
    remark: str | None = None

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def own(self) -> HookProgram | None:
        """Its hook, if that calls our program."""
        return self.file.hook if self.file is not None and _is_ours(self.file.hook) else None

    def sorts_before(self, other: Entry) -> bool:
        """Whether readers run its hooks before those of another file."""
        return self.name.lower() < other.name.lower()


def read_entry(path: str) -> Entry:
    """Parse and validate a file of hooks.d, in the order in which its readers do."""
    try:
        # As Go decodes it, which replaces what is invalid UTF-8 in a string.
        found = _name_fields(jsontext.loads(files.read(path, files.CONFIGURATION).decode("utf-8", "replace")))
        if isinstance(found, dict) and found.get("version") in _OLD_VERSIONS:
            return Entry(path, remark="format before 1.0.0, which newer readers do not support")
        file = HookFile.model_validate(found)
    except ValidationError as error:
        return Entry(path, problem=explain_invalid(error.errors()))
    except files.Unreadable as error:
        if error.is_missing:
            return Entry(path, remark="it does not exist, or is a link to nothing, so readers skip it")
        return Entry(path, problem=f"cannot read it: {error.why}")
    except ValueError as error:
        return Entry(path, problem=f"cannot read it: {error}")
    return _check_fields(path, file)


def _check_fields(path: str, file: HookFile) -> Entry:
    """The entry of a file whose fields have the right types."""
    if not file.hook.path:
        return Entry(path, problem="hook.path is empty")
    if not os.path.exists(file.hook.path):
        return Entry(path, file, remark=f"its program {file.hook.path} is missing, so readers skip the file")
    patterns = {pattern: is_valid(pattern) for pattern in list_patterns(file)}
    if invalid := [pattern for pattern, valid in patterns.items() if valid is False]:
        return Entry(path, problem=f"{invalid[0]!r} is not a valid regular expression")
    if unknown := [stage for stage in file.stages if stage not in _STAGES]:
        return Entry(path, problem=f"stages: unknown stage {unknown[0]!r}")
    if unclear := [pattern for pattern, valid in patterns.items() if valid is None]:
        return Entry(path, file, remark=f"cannot check the regular expression {unclear[0]!r}: readers may reject it")
    return Entry(path, file)


def _name_fields(found: Any, depth: int = 2) -> Any:  # noqa: ANN401  any JSON
    """Give fields their own names, which Go finds in any case, and leave out null, as Go does.

    `depth`: the levels of objects that have fields.
    """
    if not isinstance(found, dict) or depth == 0:
        return found
    fields = {name.lower(): _name_fields(it, depth - 1) for name, it in found.items() if it is not None}
    return {"hasBindMounts" if name == "hasbindmounts" else name: it for name, it in fields.items()}


def read_directory(directory: str) -> list[Entry]:
    """The files of a directory in the order of their hooks; none if it does not exist. Raises OSError."""
    names = sorted(files.list_if_there(directory), key=str.lower)
    return [read_entry(f"{directory}/{name}") for name in names if name.endswith(".json")]


def list_patterns(file: HookFile) -> list[str]:
    """The regular expressions of a file."""
    when = file.when or HookWhen()
    return [it for pair in (when.annotations or {}).items() for it in pair] + list(when.commands or [])


def is_valid(pattern: str) -> bool | None:
    """Whether readers accept a regular expression; None: it may have another meaning in Go than in Python."""
    if pattern.startswith(("*", "+", "?")):  # a pattern of file names
        return False
    if not re.fullmatch(_SHARED, pattern):
        return None
    try:
        re.compile(pattern)
    except re.error as error:
        return False if "parenthesis" in error.msg or "subpattern" in error.msg else None
    return True


# --- The hooks in a config.json: that of a container, or a base_runtime_spec of containerd


def read_hooks(path: str, tree: files.Tree = files.HOST) -> dict[str, list[HookProgram]]:
    """The hooks of each stage. Raises files.Unreadable, also if its hooks are invalid."""
    return list_hooks(path, tree.read_json(path, files.BUNDLE))


def list_hooks(path: str, config: Any) -> dict[str, list[HookProgram]]:  # noqa: ANN401  any JSON
    """The hooks of each stage in `config`, a config.json that was read from this path. Raises files.Unreadable."""
    try:
        stages = config.get("hooks") or {}
        return {stage: [HookProgram.model_validate(it) for it in found or []] for stage, found in stages.items()}
    except (AttributeError, TypeError, ValidationError) as error:
        raise files.Unreadable(path, f"invalid hooks: {error!r}") from None


def read_programs(path: str, tree: files.Tree = files.HOST) -> set[str]:
    """The programs of all hooks in a config.json. Raises files.Unreadable."""
    return {hook.path for hooks in read_hooks(path, tree).values() for hook in hooks}


def find_own_hooks(hooks: dict[str, list[HookProgram]]) -> list[HookProgram]:
    """The createRuntime hooks that are ours."""
    return [it for it in hooks.get("createRuntime", []) if _is_ours(it)]


def parse_options(hook: HookProgram) -> tuple[Options, list[str]]:
    """The options of a hook of ours, and complaints about them. Its first words are a name and the stage."""
    return parse(list(hook.args or [])[2:])


def _is_ours(hook: HookProgram) -> bool:
    return os.path.basename(hook.path) == PROGRAM
