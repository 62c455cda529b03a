# SPDX-License-Identifier: Apache-2.0
"""Reads the files of container engines: settings of CRI-O, Podman and containerd, the kubelet's names.

The settings are TOML, which Python reads since 3.11. A file that cannot be read makes the answer unclear: no function
here guesses what the file may say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, starmap
from typing import Any, NamedTuple

from hook import identity, procfs, system
from hook.explain import errno_name
from hook.node import files, hooksd, programs
from hook.node.files import CONFIGURATION, Budget, Tree, Unreadable

# --- CRI-O and Podman
#
# Each setting counts in its own table only. Later files take precedence.
# Source: crio.conf.d(5); containers.conf(5), containers-storage.conf(5) of Podman 5; containers-config(5) of Podman 6.


class Engine(NamedTuple):
    """A program that reads hooks.d. `target`: see place.TARGETS.

    `list_files`: lists its configuration files below a directory, in the order in which the program reads them.
    `table`: the names of the table that has `hooks_dir`.
    """

    name: str
    program: str
    target: str
    list_files: Callable[[str], list[str]]
    table: tuple[str, ...]

    def read_hooks_dirs(self, top: str = "") -> list[str]:
        """The hooks directories in its configuration below `top`. A later one takes precedence. Raises Unreadable."""
        directories, appends = [hooksd.SYSTEM], False
        for value in _read_settings(self.list_files(top), *self.table, "hooks_dir"):
            # The mark {append = true} also holds for later files.
            for mark in value if isinstance(value, list) else ():
                appends = mark.get("append", appends) if isinstance(mark, dict) else appends
            texts = [text.rstrip("/") for text in _list_texts(value)]
            directories = [*directories, *texts] if appends else texts
        return directories


def _list_crio(top: str) -> list[str]:
    return [*_find_main(f"{top}/etc/crio/crio"), *_list_drop_ins(f"{top}/etc/crio/crio.conf.d", "")]


def _list_podman(top: str, kind: str = "containers") -> list[str]:
    """Podman's files for root, in the order in which it reads them. Raises Unreadable if that is unclear.

    Podman 6 reads one main file, and then the drop-ins of all directories by name, where a later one replaces its
    namesakes. Earlier ones read each main file of containers.conf, but only one file of storage.conf.
    """
    usr, etc, own = (f"{top}{directory}/{kind}" for directory in _PODMANS)
    directories = (f"{usr}.conf.d", f"{usr}.rootful.conf.d", f"{etc}.conf.d", f"{etc}.rootful.conf.d", f"{own}.conf.d")
    drop_ins = {os.path.basename(path): path for directory in directories for path in _list_drop_ins(directory)}
    new = [*(_find_main(own) or _find_main(etc) or _find_main(usr)), *(drop_ins[name] for name in sorted(drop_ins))]
    old = _find_main(etc) or _find_main(usr)
    if kind == "containers":
        later = [path for base in (etc, own) for path in (*_find_main(base), *_list_drop_ins(f"{base}.conf.d"))]
        old = [*_find_main(usr), *later]
    # Podman is asked only where that matters. One below another directory may not run here.
    return old if old == new or _ask_podman(top) < _ONE_MAIN_FILE else new


def _ask_podman(top: str) -> int:
    """The major version of the installed Podman. Raises Unreadable."""
    program = None if top else programs.find_program("podman")
    output = programs.run_program([program, "--version"], seconds=_PATIENCE).output if program is not None else ""
    found = re.match(r"podman version (\d+)\.", output)
    if found is None:
        raise Unreadable(f"{top}/etc/containers", "which files count depends on Podman's version, which is unknown")
    return int(found[1])


def _find_main(base: str) -> list[str]:
    """The main file of a configuration, if it exists."""
    return [path for path in (f"{base}.conf",) if os.path.exists(path)]


def _list_drop_ins(directory: str, ending: str = ".conf") -> list[str]:
    """The files in a directory, in the order of their names. Raises Unreadable."""
    paths = [f"{directory}/{name}" for name in files.list_if_there(directory) if name.endswith(ending)]
    return [path for path in paths if not os.path.isdir(path)]


CRIO = Engine("CRI-O", "crio", "kubernetes", _list_crio, ("crio", "runtime"))
# Its option --hooks-dir and the variable CONTAINERS_CONF are not visible here.
PODMAN = Engine("Podman", "podman", "podman", _list_podman, ("engine",))
_PODMANS = ("/usr/share/containers", "/etc/containers", "/root/.config/containers")
_ONE_MAIN_FILE = 6  # the first version of Podman that reads only one main file
_PATIENCE = 10.0  # seconds for `podman --version`
_GRAPH_ROOT = "/var/lib/containers/storage"


def list_hooks_dirs() -> list[str]:
    """All hooks directories that are read by default, or by a configuration that can be read."""
    configured = (system.try_call(engine.read_hooks_dirs) or () for engine in (CRIO, PODMAN))
    return [*dict.fromkeys(chain(hooksd.READERS, *configured))]


def read_rdt_config_file() -> str | None:
    """The file by which CRI-O makes ctrl_groups, if any. Raises Unreadable."""
    return _read_text(_list_crio(""), *CRIO.table, "rdt_config_file") or None


def read_graph_root() -> str:
    """The directory in which Podman keeps its containers and its database; the default one if that is unclear.

    The IDs of containers are unique, so a directory that is not Podman's has no name for one that runs.
    """
    found = system.try_call(lambda: _read_text(_list_podman("", "storage"), "storage", "graphroot"))
    return (found or _GRAPH_ROOT).rstrip("/")


def _read_text(files: Sequence[str], *names: str) -> str:
    """The text of a setting in the last file that has it; empty if there is none. Raises Unreadable."""
    return ["", *(value for value in _read_settings(files, *names) if isinstance(value, str))][-1]


def _read_settings(names_of_files: Sequence[str], *names: str) -> Iterator[object]:
    """The value of a setting in each file that has it. Raises Unreadable.

    `names`: of its tables and of the setting. The engines accept names of any case (BurntSushi/toml).
    """
    for path in names_of_files:
        value: object = files.HOST.read_toml(path, CONFIGURATION)
        for name in names:
            table = value if isinstance(value, dict) else {}
            value = table.get(name, next((found for key, found in table.items() if key.lower() == name), None))
        if value is not None:
            yield value


def _list_texts(value: object) -> list[str]:
    """The strings in a list; none if the value is no list, which an engine refuses."""
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


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
        entries = system.try_call(files.list_names, "/var/log/pods") or ()
        matches = [re.fullmatch(r"([^_]+)_([^_]+)_(.+)", entry) for entry in entries]
        found = {identity.canonical_uid(it[3]): (it[1], it[2]) for it in matches if it}
        return {uid: names for uid, names in found.items() if uid is not None}

    @cached_property
    def containers(self) -> Mapping[str, str]:
        """The name of each container in its pod, by its ID. Lacks those whose link name the kubelet has to cut."""
        entries = system.try_call(files.list_names, "/var/log/containers") or ()
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
_OLD_PLUGIN = "io.containerd.grpc.v1.cri"
_NEW_VERSION = 3  # from this version on containerd ignores the tables of its older CRI plugin


_Table = tuple[tuple[str, ...], Mapping[str, Any]]


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
    reader = _Reader(files.HOST)
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
            try:
                tables = [*_list_tables(self.files.read_toml(path, CONFIGURATION))]
            except Unreadable as error:
                self._complain(f"cannot read {path} of containerd's configuration: {error.why}")
                continue
            self._note_change(path)
            self._note_settings(path, tables)
            imports = _list_texts(tables[0][1].get("imports"))
            waiting += [found for text in imports for found in self._list_imports(path, text)]

    def _note_settings(self, path: str, tables: Sequence[_Table]) -> None:
        version = tables[0][1].get("version")
        is_new = isinstance(version, int) and version >= _NEW_VERSION
        for names, table in tables:
            # NRI's default validator rejects hooks, unless it is disabled.
            if table.get("reject_oci_hook_adjustment") is True and table.get("enable") is not False:
                self.found.rejecting.append(path)
            self.found.pod_annotations.extend(_list_texts(table.get("pod_annotations")))
            spec = table.get("base_runtime_spec")
            if isinstance(spec, str) and spec:
                self.found.specs.append(Spec(spec, self.files, not (is_new and _OLD_PLUGIN in names)))
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


def _list_tables(top: Mapping[str, Any]) -> Iterator[_Table]:
    """The tables of a file, itself first, each with the names that lead to it. containerd accepts names of any case."""
    waiting: list[_Table] = [((), top)]
    while waiting:
        names, table = waiting.pop(0)
        yield names, {name.lower(): value for name, value in table.items()}
        waiting += [((*names, name), value) for name, value in table.items() if isinstance(value, dict)]
