"""hooks.d, as CRI-O, Podman and the NRI hook-injector read it: its directories, its files, and whom a file is for.

Source: oci-hooks(5), and pkg/hooks of containers/common. One broken file keeps Podman from starting any container, and
CRI-O and the hook-injector from starting at all. A file whose program is missing is passed over in silence.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from hook.base import jsontext, system
from hook.base.explain import errno_name, explain
from hook.base.models import HookFile, ValidationError

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
"""The directories that are read by default, and by whom. A file in a later one replaces its namesake in an earlier."""

_LIMIT = 1 << 20
_ANY = ("", "^", "$", ".*", "^.*", ".*$", "^.*$")
_STAGES = ("createContainer", "createRuntime", "poststart", "poststop", "prestart", "startContainer")
_OLD_VERSIONS = (None, "", "0.1.0")
# The regular expressions of Go's that mean the same to Python, but for a $, which to Python is before a last \n too.
_ESCAPE = r"\\[dDwW!-/:-@\[-`{-~]"
_CLASS = rf"\[\^?(?:(?!--|&&|~~|\|\|)[^][\\^]|{_ESCAPE})+\]"
_REPEAT = r"(?:[*+?]|\{\d{1,3}(?:,\d{0,3})?\})\??"
_SHARED = re.compile(
    rf"(?:(?:[^][\\(){{}}*+?|^$]|{_ESCAPE}|{_CLASS}|\))(?:{_REPEAT})?|\((?:\?:)?|[|^$]|\\[bB])*", re.ASCII
)
_END = re.compile(rf"({_ESCAPE}|{_CLASS})|\$")


@dataclass(frozen=True)
class Entry:
    """A file of hooks.d. `problem`: why readers refuse it, and everything with it; `remark`: what else is odd.

    `file`: None if it is refused, or of the form before 1.0.0, which is not looked into.
    """

    path: str
    file: HookFile | None = None
    problem: str | None = None
    remark: str | None = None

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    def calls(self, program: str) -> bool:
        """Whether it has a program of this name called."""
        return self.file is not None and os.path.basename(self.file.hook.path) == program


@dataclass(frozen=True)
class Subject:
    """A container as the conditions of a file see it. `command`: the first of its arguments, None if not known."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    command: str | None = None
    has_bind_mounts: bool = False


def read(path: str) -> Entry:
    """What readers make of a file."""
    try:
        found = jsontext.loads(system.read_file(path, _LIMIT))
        if isinstance(found, dict) and found.get("version") in _OLD_VERSIONS:
            return Entry(path, remark="the form before 1.0.0, which newer readers do not know")
        file = HookFile.model_validate(found)
    except ValidationError as error:
        return Entry(path, problem=explain(error.errors()))
    except OSError as error:
        return Entry(path, problem=f"it cannot be read: {errno_name(error)}")
    except ValueError as error:
        return Entry(path, problem=str(error))
    if unknown := [stage for stage in file.stages if stage not in _STAGES]:
        return Entry(path, problem=f"stages: there is no {unknown[0]!r}")
    if not file.hook.path:
        return Entry(path, problem="hook.path: it is empty")
    if not os.path.exists(file.hook.path):
        return Entry(path, file, remark=f"its program {file.hook.path} is missing: it is passed over")
    return Entry(path, file, remark=next(filter(None, map(_odd_pattern, patterns(file))), None))


def read_directory(directory: str) -> list[Entry]:
    """The files of a directory in the order in which their hooks run; none where it is not there. Raises OSError."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return [read(f"{directory}/{name}") for name in sorted(names, key=str.lower) if name.endswith(".json")]


def effective(directories: Iterable[str]) -> list[Entry]:
    """What a reader of several directories goes by, in the order in which it runs."""
    found = {entry.name: entry for directory in directories for entry in read_directory(directory)}
    return [found[name] for name in sorted(found, key=str.lower)]


def patterns(file: HookFile) -> list[str]:
    """The regular expressions of a file."""
    return [it for pair in (file.when.annotations or {}).items() for it in pair] + list(file.when.commands or [])


def why_not(file: HookFile, subject: Subject) -> str | None:
    """Why a file is not for a container; None: it is. Every condition must hold, and there must be one."""
    when = file.when
    if when.always is False:
        return "always is false"
    if when.has_bind_mounts is not None and not (when.has_bind_mounts and subject.has_bind_mounts):
        return "hasBindMounts: it has none" if when.has_bind_mounts else "hasBindMounts is false, which never matches"
    for key, value in (when.annotations or {}).items():
        if not any(_found(key, name) and _found(value, text) for name, text in subject.annotations.items()):
            return _near_miss(key, value, subject.annotations)
    if when.commands:
        if subject.command is None:
            return "commands: what it runs is not known here"
        if not any(_found(pattern, subject.command) for pattern in when.commands):
            return f"commands: none of them is found in {subject.command!r}"
        return None
    if when.always or when.has_bind_mounts or when.annotations:
        return None
    return "it has no condition, which never matches"


def valued(file: HookFile) -> list[str]:
    """The patterns of annotations' keys for which a file demands certain values, which whoever wins can spoil."""
    return [key for key, value in (file.when.annotations or {}).items() if value not in _ANY]


def _near_miss(key: str, value: str, annotations: Mapping[str, str]) -> str:
    texts = [f"{name}={text!r}" for name, text in annotations.items() if _found(key, name)]
    if texts:
        return f"annotations: the value of {', '.join(texts)} has no {value!r}"
    return f"annotations: no key has {key!r}"


def _found(pattern: str, text: str) -> bool:
    """Unanchored, as Go has it. A pattern that cannot be checked here matches nothing: `remark` says so."""
    if _odd_pattern(pattern):
        return False
    return re.search(_END.sub(lambda found: found[1] or r"\Z", pattern), text, re.ASCII) is not None


def _odd_pattern(pattern: str) -> str | None:
    if not _SHARED.fullmatch(pattern):
        return f"the regular expression {pattern!r} has syntax that is not checked here: readers may refuse it"
    try:
        re.compile(pattern)
    except re.error as error:
        return f"{pattern!r} is not a valid regular expression: {error}"
    return None
