# SPDX-License-Identifier: Apache-2.0
"""Reads the settings of container engines: CRI-O, Podman and containerd.

They are TOML, which Python reads since 3.11. A file that cannot be read makes the answer unclear:
no function here guesses what the file may say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from hook import system
from hook.node import files, hooksd, programs

# --- CRI-O and Podman
#
# Each setting counts in its own table only. Later files take precedence. Source: crio.conf.d(5);
# containers.conf(5), containers-storage.conf(5) of Podman 5; containers-config(5) of Podman 6.


class Engine(NamedTuple):
    """A program that reads hooks.d."""

    name: str
    program: str
    """As in paths.RUNTIMES."""
    list_files: Callable[[], list[str]]
    """Lists its configuration files, in the order in which the program reads them."""
    table: tuple[str, ...]
    """The names that lead to the table with `hooks_dir`."""

    def read_hooks_dirs(self) -> list[str]:
        """Return the hooks directories in its configuration.

        A later one takes precedence. Raises Unreadable.
        """
        directories, appends = [hooksd.SYSTEM], False
        for value in _read_settings(self.list_files(), *self.table, "hooks_dir"):
            # The mark {append = true} also holds for later files.
            for mark in value if isinstance(value, list) else ():
                appends = mark.get("append", appends) if isinstance(mark, dict) else appends
            texts = [text.rstrip("/") for text in _list_texts(value)]
            directories = [*directories, *texts] if appends else texts
        return directories


def _list_crio() -> list[str]:
    return [*_find_main("/etc/crio/crio"), *_list_drop_ins("/etc/crio/crio.conf.d", "")]


def _list_podman(kind: str = "containers") -> list[str]:
    """Return Podman's files for root, in the order in which it reads them.

    Raises Unreadable if that is unclear.

    Podman 6 reads one main file, and then the drop-ins of all directories by name, where a
    later one replaces its namesakes. Earlier ones read each main file of containers.conf, but
    only one file of storage.conf.
    """
    usr, etc, root = (f"{directory}/{kind}" for directory in _PODMANS)
    directories = (
        f"{usr}.conf.d",
        f"{usr}.rootful.conf.d",
        f"{etc}.conf.d",
        f"{etc}.rootful.conf.d",
        f"{root}.conf.d",
    )
    drop_ins = {
        os.path.basename(path): path
        for directory in directories
        for path in _list_drop_ins(directory)
    }
    new = [
        *(_find_main(root) or _find_main(etc) or _find_main(usr)),
        *(drop_ins[name] for name in sorted(drop_ins)),
    ]
    old = _find_main(etc) or _find_main(usr)
    if kind == "containers":
        later = [
            path
            for base in (etc, root)
            for path in (*_find_main(base), *_list_drop_ins(f"{base}.conf.d"))
        ]
        old = [*_find_main(usr), *later]
    # Podman is asked only where that matters.
    return old if old == new or _ask_podman() < 6 else new


def _ask_podman() -> int:
    """Return the major version of the installed Podman. Raises Unreadable."""
    program = programs.find_program("podman")
    output = (
        programs.run_program([program, "--version"], seconds=10.0).output
        if program is not None
        else ""
    )
    version = re.match(r"podman version (\d+)\.", output)
    if version is None:
        raise files.Unreadable(
            "/etc/containers", "which files count depends on Podman's version, which is unknown"
        )
    return int(version[1])


def _find_main(base: str) -> list[str]:
    """Return the main file of a configuration, if it exists."""
    return [path for path in (f"{base}.conf",) if os.path.exists(path)]


def _list_drop_ins(directory: str, ending: str = ".conf") -> list[str]:
    """Return the files in a directory, in the order of their names. Raises Unreadable."""
    paths = [
        f"{directory}/{name}" for name in files.list_if_there(directory) if name.endswith(ending)
    ]
    return [path for path in paths if not os.path.isdir(path)]


CRIO = Engine("CRI-O", "crio", _list_crio, ("crio", "runtime"))
# Its option --hooks-dir and the variable CONTAINERS_CONF are not visible here.
PODMAN = Engine("Podman", "podman", _list_podman, ("engine",))
_PODMANS = ("/usr/share/containers", "/etc/containers", "/root/.config/containers")
_GRAPH_ROOT = "/var/lib/containers/storage"


def list_hooks_dirs() -> list[str]:
    """Return all hooks directories that are read by default,
    or by a configuration that can be read.
    """
    configured = (system.try_call(engine.read_hooks_dirs) or () for engine in (CRIO, PODMAN))
    return [*dict.fromkeys(chain(hooksd.READERS, *configured))]


def read_graph_root() -> str:
    """Return the directory in which Podman keeps its containers,
    or the default one if that is unclear.

    The IDs of containers are unique, so a directory that is not Podman's has
    no name for one that runs.
    """
    roots = system.try_call(
        lambda: [*_read_settings(_list_podman("storage"), "storage", "graphroot")]
    )
    return [_GRAPH_ROOT, *(value for value in roots or () if isinstance(value, str) and value)][
        -1
    ].rstrip("/")


def _read_settings(paths: Sequence[str], *names: str) -> Iterator[object]:
    """Yield the value of a setting in each file that has it. Raises Unreadable.

    `names` are those of its tables, and its own.
    The engines accept names of any case (BurntSushi/toml).
    """
    for path in paths:
        value: object = files.read_toml(path, files.CONFIGURATION)
        for name in names:
            table = value if isinstance(value, dict) else {}
            value = table.get(
                name, next((other for key, other in table.items() if key.lower() == name), None)
            )
        if value is not None:
            yield value


def _list_texts(value: object) -> list[str]:
    """Return the strings in a list, or none if the value is no list, which an engine refuses."""
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


# --- containerd: the files at the usual paths, and what they import
#
# A base_runtime_spec can name the hook; without the program no container of that runtime starts. A
# file that cannot be read or parsed is a line of `unclear`. A containerd that is started with
# another file (-c) is not seen. Source: containerd-config.toml(5), and LoadConfig and
# resolveImports of containerd's cmd/containerd/server/config.

_PLACES = (
    "/etc/containerd/config.toml",
    "/etc/containerd/conf.d/*.toml",  # imported by default since containerd 2.2
    "/var/lib/rancher/*/agent/etc/containerd/config*.toml",  # k3s, RKE2
    "/var/lib/rancher/*/agent/etc/containerd/config*.toml.d/*.toml",
)
_MOST_FILES = 1000  # a file may import itself
_OLD_PLUGIN = "io.containerd.grpc.v1.cri"
# Of a file: from this one on (2.3 writes 4) containerd ignores the tables of the old plugin.
_NEW_VERSION = 3


class Spec(NamedTuple):
    """A base_runtime_spec. It is in force if containerd uses its table."""

    path: str
    is_in_force: bool
    version: int  # of the file that names it


class Configuration(NamedTuple):
    """containerd's settings for hooks."""

    specs: list[Spec]
    rejecting: list[str]
    """The files by which containerd rejects each container to which an NRI plugin adds a hook."""
    unclear: list[str]
    """A line for each file that was not read or not understood."""


def read_containerd() -> Configuration:
    """Read containerd's configuration."""
    settings = Configuration([], [], [])
    waiting = [*_PLACES]
    known: set[str] = set()
    while waiting:
        pattern = waiting.pop(0)
        try:
            paths = [
                path
                for path in files.match(pattern)
                if pattern not in _PLACES or os.path.lexists(path)
            ]
            for path in [path for path in paths if path not in known]:
                if len(known) == _MOST_FILES:
                    settings.unclear.append(
                        f"containerd's configuration has more than {_MOST_FILES} files"
                    )
                    return settings
                known.add(path)
                waiting += _read_file(path, settings)
        except files.Unreadable as error:
            settings.unclear.append(
                f"cannot read {error.filename} of containerd's configuration: {error.why}"
            )
    return settings


def _read_file(path: str, settings: Configuration) -> list[str]:
    """Note the settings of a file, and return what it imports, relative to the file.

    Raises Unreadable.
    """
    tables = [*_list_tables(files.read_toml(path, files.CONFIGURATION))]
    top = tables[0][1]
    version = top["version"] if isinstance(top.get("version"), int) else 1
    for place, table in tables:
        # NRI's default validator rejects hooks, unless it is disabled.
        if table.get("reject_oci_hook_adjustment") is True and table.get("enable") is not False:
            settings.rejecting.append(path)
        spec = table.get("base_runtime_spec")
        if isinstance(spec, str) and spec:
            settings.specs.append(
                Spec(spec, not (version >= _NEW_VERSION and _OLD_PLUGIN in place), version)
            )
    return [os.path.join(os.path.dirname(path), text) for text in _list_texts(top.get("imports"))]


def _list_tables(top: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the tables of a file, the top one first, each with the names that lead to it.

    Names may have any case.
    """
    waiting: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [((), top)]
    while waiting:
        names, table = waiting.pop(0)
        yield names, {name.lower(): value for name, value in table.items()}
        waiting += [
            ((*names, name), value) for name, value in table.items() if isinstance(value, dict)
        ]
