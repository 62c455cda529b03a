# SPDX-License-Identifier: Apache-2.0
"""Reads hooks.d like CRI-O, Podman and the NRI hook-injector: directories, files, and which containers a file matches.

Source: oci-hooks(5), and pkg/hooks of containers/common. With one invalid file, Podman starts no container, and
CRI-O and the hook-injector do not start. A file whose program is missing is skipped without a message.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from hook.base.explain import explain
from hook.base.models import HookFile, ValidationError
from hook.host import door
from hook.host.door import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SYSTEM = "/usr/share/containers/oci/hooks.d"
ADMINISTRATOR = "/etc/containers/oci/hooks.d"
READERS = {
    SYSTEM: "CRI-O, Podman, the NRI hook-injector",
    ADMINISTRATOR: "OpenShift's CRI-O, the NRI hook-injector, podman build; not Podman, unless hooks_dir in its "
    "containers.conf names it",
}
"""The default directories and their readers. A file in a later one overrides its namesake in an earlier one."""

_ANY = ("", "^", "$", ".*", "^.*", ".*$", "^.*$")
_STAGES = ("createContainer", "createRuntime", "poststart", "poststop", "prestart", "startContainer")
_OLD_VERSIONS = (None, "", "0.1.0")
# Regular expressions with the same meaning in Go and Python, except $, which in Python also matches before a last \n.
_ESCAPE = r"\\[dDwW!-/:-@\[-`{-~]"
_CLASS = rf"\[\^?(?:(?!--|&&|~~|\|\|)[^][\\^]|{_ESCAPE})+\]"
_REPEAT = r"(?:[*+?]|\{\d{1,3}(?:,\d{0,3})?\})\??"
_SHARED = re.compile(
    rf"(?:(?:[^][\\(){{}}*+?|^$]|{_ESCAPE}|{_CLASS}|\))(?:{_REPEAT})?|\((?:\?:)?|[|^$]|\\[bB])*", re.ASCII
)
_END = re.compile(rf"({_ESCAPE}|{_CLASS})|\$")


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

    def calls(self, program: str) -> bool:
        """Whether it calls a program of this name."""
        return self.file is not None and os.path.basename(self.file.hook.path) == program


@dataclass(frozen=True)
class Subject:
    """What the conditions of a file are compared with. `command`: the container's first argument, None if unknown."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    command: str | None = None
    has_bind_mounts: bool = False


def read(path: str) -> Entry:
    """Parse and validate a file."""
    try:
        found = door.read_json(path, door.CONFIGURATION)
        if isinstance(found, dict) and found.get("version") in _OLD_VERSIONS:
            return Entry(path, remark="format before 1.0.0, which newer readers do not support")
        file = HookFile.model_validate(found)
    except ValidationError as error:
        return Entry(path, problem=explain(error.errors()))
    except Unreadable as error:
        return Entry(path, problem=f"cannot read it: {error.why}")
    if unknown := [stage for stage in file.stages if stage not in _STAGES]:
        return Entry(path, problem=f"stages: unknown stage {unknown[0]!r}")
    if not file.hook.path:
        return Entry(path, problem="hook.path is empty")
    if not os.path.exists(file.hook.path):
        return Entry(path, file, remark=f"its program {file.hook.path} is missing, so readers skip the file")
    return Entry(path, file, remark=next(filter(None, map(_check_pattern, list_patterns(file))), None))


def read_directory(directory: str) -> list[Entry]:
    """The files of a directory in the order of their hooks; none if it does not exist. Raises OSError."""
    try:
        names = door.list_names(directory)
    except Unreadable as error:
        if error.is_missing:
            return []
        raise
    return [read(f"{directory}/{name}") for name in sorted(names, key=str.lower) if name.endswith(".json")]


def merge_directories(directories: Iterable[str]) -> list[Entry]:
    """The files that a reader of several directories uses, in the order of their hooks."""
    found = {entry.name: entry for directory in directories for entry in read_directory(directory)}
    return [found[name] for name in sorted(found, key=str.lower)]


def list_patterns(file: HookFile) -> list[str]:
    """The regular expressions of a file."""
    return [it for pair in (file.when.annotations or {}).items() for it in pair] + list(file.when.commands or [])


def find_mismatch(file: HookFile, subject: Subject) -> str | None:
    """Why a file does not match a container; None if it matches. All conditions must hold, and there must be one."""
    when = file.when
    if when.always is False:
        return "always is false"
    if when.has_bind_mounts is not None and not (when.has_bind_mounts and subject.has_bind_mounts):
        return (
            "hasBindMounts: the container has none"
            if when.has_bind_mounts
            else "hasBindMounts is false, which never matches"
        )
    for key, value in (when.annotations or {}).items():
        if not any(_matches(key, name) and _matches(value, text) for name, text in subject.annotations.items()):
            return _explain_mismatch(key, value, subject.annotations)
    if when.commands:
        if subject.command is None:
            return "commands: the container's command is unknown"
        if not any(_matches(pattern, subject.command) for pattern in when.commands):
            return f"commands: none matches {subject.command!r}"
        return None
    if when.always or when.has_bind_mounts or when.annotations:
        return None
    return "no condition, which never matches"


def list_value_patterns(file: HookFile) -> list[str]:
    """The patterns of annotation keys whose values the file checks: another source of annotations may change those."""
    return [key for key, value in (file.when.annotations or {}).items() if value not in _ANY]


def _explain_mismatch(key: str, value: str, annotations: Mapping[str, str]) -> str:
    texts = [f"{name}={text!r}" for name, text in annotations.items() if _matches(key, name)]
    if texts:
        return f"annotations: the value of {', '.join(texts)} does not match {value!r}"
    return f"annotations: no key matches {key!r}"


def _matches(pattern: str, text: str) -> bool:
    """Unanchored search, as in Go. A pattern that Python may read differently matches nothing; see `remark`."""
    if _check_pattern(pattern):
        return False
    return re.search(_END.sub(lambda found: found[1] or r"\Z", pattern), text, re.ASCII) is not None


def _check_pattern(pattern: str) -> str | None:
    if not _SHARED.fullmatch(pattern):
        return f"cannot check the syntax of the regular expression {pattern!r}: readers may reject it"
    try:
        re.compile(pattern)
    except re.error as error:
        return f"{pattern!r} is not a valid regular expression: {error}"
    return None
