# SPDX-License-Identifier: Apache-2.0
"""Reads the files of container engines: settings of CRI-O, Podman and containerd, the kubelet's names.

The settings are TOML, which Python cannot parse before 3.11. Those that matter here are found by their names if each is
on a line of its own, with plain strings. Any other notation (an inline table, a string with escapes) is not parsed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, starmap
from typing import NamedTuple

from hook.base import procfs, system
from hook.base.explain import errno_name
from hook.node import door, hooksd, programs
from hook.node.door import CONFIGURATION, Budget, Tree, Unreadable
from hook.stages import identity

# A comment after strings that end on its line. A comment after a multi-line string stays, which is harmless.
# Compiled when they are first used: `list` and `metrics` load this module for the place of Podman's storage alone.
_COMMENT = r"""(?m)^((?:[^"'#\n]|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')*)#.*$"""
_TEXT = r"""(?:"[^"\\\n]*"|'[^'\n]*')"""
_TEXTS = rf"\[(?:\s|,|{_TEXT}|\{{[^{{}}\n]*\}})*\]"
_TABLE = r"\[[ \t]*(?P<table>[^\[\]\n].*)\][ \t]*\r?$"
_NAME = r"""(?P<above>[^\s=][^\n=]*\.[ \t]*)?["']?(?P<name>\w+)["']?[ \t]*="""
_LINE = rf"(?m)^[ \t]*(?:{_TABLE}|{_NAME}[ \t]*(?P<value>{_TEXTS}(?=[ \t]*\r?$)|[^\n]*))"


class Setting(NamedTuple):
    """A setting on a line of its own. `table`: its table, and what is before a dot in its own name."""

    table: str
    name: str
    value: str

    @property
    def texts(self) -> list[str]:
        """The strings in its value, without quotes."""
        return [it[1:-1] for it in re.findall(_TEXT, self.value)]


def _parse_settings(text: str) -> list[Setting]:
    """The settings of a file. `text`: without comments."""
    found, table = [], ""
    for it in re.finditer(_LINE, text):
        if it["name"] is None:
            table = it["table"]
        else:
            found.append(Setting(f"{table}.{it['above'] or ''}", it["name"], it["value"].strip()))
    return found


# --- CRI-O and Podman


class Engine(NamedTuple):
    """A program that reads hooks.d, and the patterns of its configuration's files. `target`: see place.TARGETS."""

    name: str
    program: str
    target: str
    files: tuple[str, ...]

    def read_hooks_dirs(self, top: str = "") -> list[str]:
        """The hooks directories in its configuration below `top`. A later one takes precedence."""
        directories = [hooksd.SYSTEM]
        for it in _find_settings([top + pattern for pattern in self.files], "hooks_dir"):
            texts = [text.rstrip("/") for text in it.texts]
            directories = [*directories, *texts] if re.search(r"append\s*=\s*true", it.value) else texts
        return directories


CRIO = Engine("CRI-O", "crio", "kubernetes", ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*"))
# Its option --hooks-dir is not visible here.
_PODMAN_FILES = ("/etc/containers/containers.conf", "/etc/containers/containers.conf.d/*.conf")
PODMAN = Engine("Podman", "podman", "podman", ("/usr/share/containers/containers.conf", *_PODMAN_FILES))
_STORAGE = ("/usr/share/containers/storage.conf", "/etc/containers/storage.conf")
_GRAPH_ROOT = "/var/lib/containers/storage"


def list_hooks_dirs() -> list[str]:
    """All hooks directories that are read by default or by configuration."""
    return [*dict.fromkeys((*hooksd.READERS, *CRIO.read_hooks_dirs(), *PODMAN.read_hooks_dirs()))]


def read_rdt_config_file() -> str | None:
    """The file by which CRI-O makes ctrl_groups, if any."""
    return _read_text(CRIO.files, "rdt_config_file") or None


def read_graph_root() -> str:
    """The directory in which Podman keeps its containers and its database."""
    return _read_text(_STORAGE, "graphroot").rstrip("/") or _GRAPH_ROOT


def _read_text(patterns: Sequence[str], name: str) -> str:
    """The string of a setting in the file that takes precedence; empty if no file has the setting."""
    return next((it.texts[0] for it in reversed(_find_settings(patterns, name)) if it.texts), "")


def _find_settings(patterns: Sequence[str], name: str) -> list[Setting]:
    """All occurrences of a setting; the last one takes precedence. Skips unreadable files."""
    files = [path for pattern in patterns for path in _Reader(door.HOST).list_matching(pattern)]
    return [it for path in files for it in _Reader(door.HOST).read_settings(path) if it.name == name]


# --- Names by the kubelet: a record that was rebuilt from the kernel has none
#
# kubelet, pkg/kubelet/kuberuntime: directories `/var/log/pods/<namespace>_<pod>_<uid>`, and for readers of logs links
# `/var/log/containers/<pod>_<namespace>_<container>-<container ID>.log`. No name has a `_` in it (RFC 1123).
# None is there in the chart, and none is read where there are more than any node has.


class KubeletNames:
    """The kubelet's names, each kind read when it is first asked for."""

    @cached_property
    def pods(self) -> Mapping[str, tuple[str, str]]:
        """The namespace and the name of each pod, by its UID. Empty if the kubelet's log directory is not visible."""
        entries = system.try_call(door.list_names, "/var/log/pods") or ()
        matches = [re.fullmatch(r"([^_]+)_([^_]+)_(.+)", entry) for entry in entries]
        found = {identity.canonical_uid(it[3]): (it[1], it[2]) for it in matches if it}
        return {uid: names for uid, names in found.items() if uid is not None}

    @cached_property
    def containers(self) -> Mapping[str, str]:
        """The name of each container in its pod, by its ID. Lacks those whose link name the kubelet has to cut."""
        entries = system.try_call(door.list_names, "/var/log/containers") or ()
        matches = [re.fullmatch(r"(?:.*_)?([^_]+)-([^_-]*)\.log", entry) for entry in entries]
        return {it[2]: it[1] for it in matches if it}


# --- containerd
#
# A base_runtime_spec can name the hook; without the program no container of that runtime starts. So every file that may
# name one is read, and a file that cannot be read or parsed is a line of `unclear`.
# Source: containerd-config.toml(5), and LoadConfig and resolveImports of containerd's cmd/containerd/server/config.

_CONTAINERD = "/etc/containerd/config.toml"
_DROP_INS = "/etc/containerd/conf.d/*.toml"  # imported by default since containerd 2.2
_PLACES = (
    _CONTAINERD,
    _DROP_INS,
    "/var/lib/rancher/*/agent/etc/containerd/config*.toml",  # k3s, RKE2
    "/var/lib/rancher/*/agent/etc/containerd/config*.toml.d/*.toml",
)
_MOST_FILES = 1000  # in one configuration: a file may import itself
_SLACK = 2.0  # seconds: containerd reads its files a moment after it has started
# With version 3 or newer containerd ignores the tables of its older CRI plugin.
_NEW_VERSION = r"[3-9]|[1-9]\d+"
_OLD_PLUGIN = "io.containerd.grpc.v1.cri"
# The forms in which a setting is understood.
_FORMS = {"base_runtime_spec": _TEXT, "imports": _TEXTS}
_REJECTS = r"""\breject_oci_hook_adjustment["']?[ \t]*=[ \t]*true\b"""


class Spec(NamedTuple):
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


def read_containerd(*, is_running: bool = True) -> Configuration:
    """Read the files at the usual paths and, unless `is_running` is False, those of each containerd of the host."""
    reader = _Reader(door.HOST)
    for path in [path for place in _PLACES for path in reader.list_matching(place)]:
        if os.path.lexists(path):
            reader.read(path)
    parts = [reader.found]
    if is_running:
        running = programs.find_processes(lambda words: os.path.basename(words[0]) == "containerd")
        parts += [Configuration(unclear=running.unclear), *starmap(_read_running, running.words.items())]
    # Joined; each item occurs once.
    specs = {(it.files.at(it.path), it.in_force): it for part in parts for it in part.specs}
    lines = zip(*((it.rejecting, it.unclear, it.pod_annotations) for it in parts))
    return Configuration([*specs.values()], *([*dict.fromkeys(chain.from_iterable(it))] for it in lines))


def _read_running(pid: int, words: Sequence[str]) -> Configuration:
    """Read the files of a running containerd, which uses their content at the time it started."""
    found = Configuration()
    try:
        reader = _Reader(programs.see_files(pid), pid)
        found, path = reader.found, _find_file(words)
        if path != _CONTAINERD or reader.files.find(path) is not None:
            reader.read(path)
        for drop_in in reader.list_matching(_DROP_INS):
            reader.read(drop_in)
    except OSError as error:
        found.unclear.append(f"cannot read the files of containerd (pid {pid}): {errno_name(error)}")
    return Configuration() if procfs.is_dead(pid) else found


def _find_file(words: Sequence[str]) -> str:
    """The configuration file on the command line of a containerd, or the default."""
    given: list[str] = re.findall(r"\0--?c(?:onfig)?[=\0]([^\0]*)", "\0".join(words))
    return ["", *given][-1] or _CONTAINERD


class _Reader:
    """Reads files and their imports to `found`. `pid`: the running containerd that uses them; None if none runs."""

    def __init__(self, files: Tree, pid: int | None = None) -> None:
        self.found = Configuration()
        self.files = files
        self._pid = pid
        self._started = programs.read_start_time(pid) if pid is not None else None
        self._read: set[str] = set()
        self._budget = Budget()

    def read(self, path: str) -> None:
        """Note the settings of a file, and of what it imports."""
        waiting = [path]
        while waiting:
            path = waiting.pop(0)
            if path in self._read:
                continue
            if len(self._read) == _MOST_FILES:
                self._complain(f"did not read {path}: containerd's configuration has more than {_MOST_FILES} files")
                return
            self._read.add(path)
            settings = self.read_settings(path)
            self._note_settings(path, settings)
            imports = [text for it in settings if it.name == "imports" for text in it.texts]
            waiting += [it for text in imports for it in self._list_imports(path, text)]

    def read_settings(self, path: str) -> list[Setting]:
        """The settings of a file. Those of _FORMS only in their form; others of that name are unclear."""
        try:
            text = re.sub(_COMMENT, r"\1", self.files.read_text(path, CONFIGURATION))
        except Unreadable as error:
            self._complain(f"cannot read {path} of containerd's configuration: {error.why}")
            return []
        self._note_change(path)
        found = _parse_settings(text)
        found = [it for it in found if it.name not in _FORMS or re.fullmatch(_FORMS[it.name], it.value)]
        names = [it.name for it in found]
        if any(len(re.findall(rf"\b{name}[\"']?[ \t]*=", text)) != names.count(name) for name in _FORMS):
            what = "cannot parse base_runtime_spec or imports"
            self._complain(f"{path}: {what}; write each on a line of its own, with plain strings")
        return found

    def _note_settings(self, path: str, settings: Sequence[Setting]) -> None:
        rejecting = {it.table for it in settings if re.search(_REJECTS, f"{it.name}={it.value}")}
        # NRI's default validator rejects hooks, unless it is disabled.
        if rejecting - {it.table for it in settings if it.name == "enable" and it.value == "false"}:
            self.found.rejecting.append(path)
        versions = [it.value for it in settings if (it.table, it.name) == (".", "version")]
        is_new = any(re.fullmatch(_NEW_VERSION, it) for it in versions)
        for it in settings:
            if it.name == "pod_annotations":
                self.found.pod_annotations.extend(it.texts)
            elif it.name == "base_runtime_spec" and (spec := it.texts[0]):
                self.found.specs.append(Spec(spec, self.files, not (is_new and _OLD_PLUGIN in it.table)))
                self._note_change(spec)

    def _list_imports(self, parent: str, path: str) -> list[str]:
        """The files that an import names.

        A relative path starts at the file; in containerd 1 a pattern starts at containerd's current directory.
        """
        beside = os.path.join(os.path.dirname(parent), path)
        if "*" not in path:
            return [beside]
        return [it for pattern in dict.fromkeys((beside, path)) for it in self.list_matching(pattern)]

    def list_matching(self, pattern: str) -> list[str]:
        """The files that a pattern matches. Also notes a change of their directory, which a removed file leaves."""
        directory = os.path.dirname(pattern)
        if self.files.stat(directory) is not None:
            self._note_change(directory)
        try:
            return self.files.match(pattern, self._budget)
        except Unreadable as error:
            where = f"{error.filename} for {pattern}"
            self._complain(f"cannot list {where} of containerd's configuration: {error.why}")
            return []

    def _note_change(self, path: str) -> None:
        """Note a file that changed after the running containerd read it."""
        if self._started is None:
            return
        found = self.files.stat(path)
        if found is None or max(found.st_mtime, found.st_ctime) > self._started + _SLACK:
            self._complain(f"{path} was changed after containerd (pid {self._pid}) started; restart containerd")

    def _complain(self, line: str) -> None:
        self.found.unclear.append(line)
