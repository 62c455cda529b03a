# SPDX-License-Identifier: Apache-2.0
"""Reads the settings for hooks in the configuration of each containerd, with all files that it imports.

A base_runtime_spec can name the hook; without the program no container of that runtime starts. So every file that may
name one is read, and a file that cannot be read or parsed is a line of `unclear`.

Python before 3.11 has no TOML parser. The settings are parsed if they are on a line of their own. A setting written in
another way (an inline table, a string with escapes) is a line of `unclear`.
Source: containerd-config.toml(5), and LoadConfig and resolveImports of containerd's cmd/containerd/server/config.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from hook.base.explain import errno_name
from hook.node import host_processes, machine
from hook.node.door import CONFIGURATION, HOST, Budget, Tree, Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_DEFAULT = "/etc/containerd/config.toml"
_DROP_INS = "/etc/containerd/conf.d/*.toml"  # imported by default since containerd 2.2
_PLACES = (
    _DEFAULT,
    _DROP_INS,
    "/var/lib/rancher/*/agent/etc/containerd/config*.toml",  # k3s, RKE2
    "/var/lib/rancher/*/agent/etc/containerd/config*.toml.d/*.toml",
)
_MOST_FILES = 1000  # in one configuration: a file may import itself
_SLACK = 2.0  # seconds: btime in /proc/stat has whole seconds

_TEXT = r"""(?:"[^"\\\n]*"|'[^'\n]*')"""
# A comment after strings that end on its line. A comment after a multi-line string stays, which is harmless.
_COMMENT = re.compile(r"""^((?:[^"'#\n]|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')*)#.*$""", re.MULTILINE)
_HEADER = re.compile(r"^[ \t]*\[[ \t]*([^\[\]\n].*)\][ \t]*\r?$", re.MULTILINE)
_VERSION = re.compile(r"^[ \t]*version[ \t]*=[ \t]*(\d+)", re.MULTILINE)
_REJECTS = re.compile(r"\breject_oci_hook_adjustment[\"']?[ \t]*=[ \t]*true\b")
_DISABLED = re.compile(r"^[ \t]*enable[ \t]*=[ \t]*false\b", re.MULTILINE)


def _match_key(name: str) -> re.Pattern[str]:
    """A key with a value, anywhere."""
    return re.compile(rf"\b{name}[\"']?[ \t]*=")


def _match_setting(name: str, value: str) -> re.Pattern[str]:
    """A key on a line of its own: the dotted tables before it, and its value."""
    return re.compile(rf"^[ \t]*([^\n=]*\.[ \t]*)?[\"']?{name}[\"']?[ \t]*=[ \t]*({value})[ \t]*\r?$", re.MULTILINE)


_SPEC = _match_key("base_runtime_spec"), _match_setting("base_runtime_spec", _TEXT)
_TEXTS = rf"\[(?:\s|,|{_TEXT})*\]"
_IMPORTS = _match_key("imports"), _match_setting("imports", _TEXTS)
_POD_ANNOTATIONS = _match_setting("pod_annotations", _TEXTS)


@dataclass(frozen=True)
class Spec:
    """A base_runtime_spec. `path`: in containerd's `files`; `in_force`: whether containerd uses its table."""

    path: str
    files: Tree
    in_force: bool


@dataclass(frozen=True)
class Configuration:
    """The settings for hooks. `unclear`: a line for each file that was not read or not understood.

    `rejecting`: the files by which containerd rejects each container to which an NRI plugin adds a hook.
    `pod_annotations`: the patterns of the pods' annotations that a runtime passes on to containers.
    """

    specs: list[Spec] = field(default_factory=list)
    rejecting: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    pod_annotations: list[str] = field(default_factory=list)

    def passes_on(self, key: str) -> bool:
        """Whether a runtime passes a pod's annotation with this key on to its containers.

        Source: containerd's docs/cri/config.md, pod_annotations. Its wildcards are those of Go's path.Match, where `*`
        does not match a slash.
        """
        wild = {r"\*": "[^/]*", r"\?": "[^/]"}
        expressions = [re.sub(r"\\[*?]", lambda it: wild[it[0]], re.escape(it)) for it in self.pod_annotations]
        return any(re.fullmatch(expression, key) for expression in expressions)


def read_configuration() -> Configuration:
    """Read the configuration of each containerd that runs on the host, and the files at the usual paths."""
    found = Configuration()
    _read_usual_files(found)
    running = host_processes.find(lambda words: os.path.basename(words[0]) == "containerd")
    found.unclear.extend(running.unclear)
    for pid, words in running.words.items():
        _read_running(found, pid, words)
    return _drop_duplicates(found)


def read_usual_files() -> Configuration:
    """Read the files at the usual paths alone, whichever processes run."""
    found = Configuration()
    _read_usual_files(found)
    return _drop_duplicates(found)


def _drop_duplicates(found: Configuration) -> Configuration:
    unique = {(spec.files.at(spec.path), spec.in_force): spec for spec in found.specs}
    lines = (found.rejecting, found.unclear, found.pod_annotations)
    return Configuration(list(unique.values()), *(list(dict.fromkeys(it)) for it in lines))


def _read_usual_files(found: Configuration) -> None:
    reader = _Reader(found, HOST)
    for path in [path for place in _PLACES for path in reader.list_matching(place)]:
        if os.path.lexists(path):
            reader.read(path)


def _read_running(found: Configuration, pid: int, words: Sequence[str]) -> None:
    """Read the files of a running containerd, which uses their content at the time it started."""
    seen = Configuration()
    try:
        reader = _Reader(seen, host_processes.see_files(pid), pid)
        path = _find_file(words)
        if path != _DEFAULT or reader.files.stat(path) is not None:
            reader.read(path)
        for drop_in in reader.list_matching(_DROP_INS):
            reader.read(drop_in)
    except OSError as error:
        seen.unclear.append(f"cannot read the files of containerd (pid {pid}): {errno_name(error)}")
    if machine.is_running(pid):
        found.specs.extend(seen.specs)
        found.rejecting.extend(seen.rejecting)
        found.unclear.extend(seen.unclear)
        found.pod_annotations.extend(seen.pod_annotations)


def _find_file(words: Sequence[str]) -> str:
    """The configuration file on the command line of a containerd, or the default."""
    path, waiting = "", list(words[:0:-1])
    while waiting:
        word = waiting.pop()
        name, has_value, value = word.lstrip("-").partition("=")
        if word.startswith("-") and name in ("c", "config"):
            path = value if has_value else waiting.pop() if waiting else ""
    return path or _DEFAULT


class _Reader:
    """Reads files and their imports. `pid`: the running containerd that uses them; None if none runs."""

    def __init__(self, found: Configuration, files: Tree, pid: int | None = None) -> None:
        self.files = files
        self._found = found
        self._pid = pid
        self._started = machine.read_start_time(pid) if pid is not None else None
        self._read: set[str] = set()
        self._budget = Budget()

    def read(self, path: str) -> None:
        waiting = [path]
        while waiting:
            path = waiting.pop(0)
            if path in self._read:
                continue
            self._read.add(path)
            if len(self._read) > _MOST_FILES:
                self._found.unclear.append(
                    f"did not read {path}: containerd's configuration has more than {_MOST_FILES} files"
                )
                return
            waiting += self._read_one(path)

    def _read_one(self, path: str) -> list[str]:
        """Note the settings of a file; returns its imports."""
        try:
            text = _COMMENT.sub(r"\1", self.files.read_text(path, CONFIGURATION))
        except Unreadable as error:
            self._found.unclear.append(f"cannot read {path} of containerd's configuration: {error.why}")
            return []
        self._note_change(path)
        if any(len(key.findall(text)) != len(setting.findall(text)) for key, setting in (_SPEC, _IMPORTS)):
            what = "cannot parse base_runtime_spec or imports"
            self._found.unclear.append(f"{path}: {what}; write each on a line of its own, with plain strings")
        if _rejects(text):
            self._found.rejecting.append(path)
        for _tables, value in _POD_ANNOTATIONS.findall(text):
            self._found.pod_annotations.extend(_split_texts(value))
        for spec, in_force in _find_specs(text):
            self._found.specs.append(Spec(spec, self.files, in_force))
            self._note_change(spec)
        return list(self._list_imports(path, text))

    def _list_imports(self, parent: str, text: str) -> Iterator[str]:
        """A relative path starts at the file; in containerd 1 a pattern starts at containerd's current directory."""
        for path in [it for _tables, value in _IMPORTS[1].findall(text) for it in _split_texts(value)]:
            beside = os.path.join(os.path.dirname(parent), path)
            if "*" not in path:
                yield beside
                continue
            for pattern in dict.fromkeys((beside, path)):
                yield from self.list_matching(pattern)

    def list_matching(self, pattern: str) -> list[str]:
        """The files that a pattern matches. A removed one shows in the modification time of their directory."""
        directory = os.path.dirname(pattern)
        if self.files.stat(directory) is not None:
            self._note_change(directory)
        try:
            return self.files.match(pattern, self._budget)
        except Unreadable as error:
            self._found.unclear.append(
                f"cannot list {error.filename} for {pattern} of containerd's configuration: {error.why}"
            )
            return []

    def _note_change(self, path: str) -> None:
        """Note a file that changed after the running containerd read it."""
        if self._started is None:
            return
        found = self.files.stat(path)
        if found is None or max(found.st_mtime, found.st_ctime) > self._started + _SLACK:
            self._found.unclear.append(
                f"{path} was changed after containerd (pid {self._pid}) started; restart containerd"
            )


def _find_specs(text: str) -> Iterator[tuple[str, bool]]:
    """Each base_runtime_spec, and whether containerd uses its table: with version 3 it ignores the old tables."""
    version = _VERSION.search(text)
    is_new = version is not None and int(version[1]) >= 3
    for match in _SPEC[1].finditer(text):
        for path in filter(None, _split_texts(match[2])):
            yield path, not (is_new and "io.containerd.grpc.v1.cri" in _find_table(text, match))


def _rejects(text: str) -> bool:
    """Whether NRI's default validator rejects hooks, and is not disabled."""
    for match in _REJECTS.finditer(text):
        start = max((it.end() for it in _HEADER.finditer(text, 0, match.start())), default=0)
        following = _HEADER.search(text, match.end())
        if not _DISABLED.search(text, start, following.start() if following else len(text)):
            return True
    return False


def _find_table(text: str, match: re.Match[str]) -> str:
    headers = [it[1] for it in _HEADER.finditer(text, 0, match.start())]
    return f"{headers[-1] if headers else ''}.{match[1] or ''}"


def _split_texts(value: str) -> list[str]:
    return [it[1:-1] for it in re.findall(_TEXT, value)]
