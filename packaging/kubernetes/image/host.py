# SPDX-License-Identifier: Apache-2.0
"""Installs and removes the chart's files on the host, and checks whether hooks can run there.

The steps are those of hook/install/, without the ones that need systemd. /host is the host's root, of which a container
has mounted /usr, read-only, and the two directories that it writes to. /bundles is the directory in which the host's
runtime keeps the bundles of containers.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hook.base import cgroups, container_tasks
from hook.base.explain import printable
from hook.install import install as installing
from hook.install import steps
from hook.install.steps import Refused, Step, remove_file, write_file
from hook.node import door, hooksd
from hook.node.door import Unreadable
from hook.node.place import KUBERNETES, Places, PyzFile, read_owner
from hook.node.programs import OLDEST
from hook.stages.entry import parse as parse_options

from ready import can_monitor

PYZ = "/app/resctrl-mon-hook.pyz"
HOST = "/host"
BUNDLES = "/bundles"
OWNER = "chart"
"""The word in the owner's file beside the program, which `install`, `doctor` and a later pod read."""
YOUNG = 60.0
"""Seconds between a container's bundle and its first process, at most."""
_KEEP_OFF = "keep this DaemonSet off such nodes (nodeSelector, affinity)"
_MOST_LINKS = 8
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO in linux/proc_ns.h
# The annotations of CRI-O and of containerd that name a container and its pod.
_WHO = (
    ("io.kubernetes.pod.namespace", "io.kubernetes.cri.sandbox-namespace"),
    ("io.kubernetes.pod.name", "io.kubernetes.cri.sandbox-name"),
    ("io.kubernetes.container.name", "io.kubernetes.cri.container-name"),
)


@dataclass(frozen=True)
class Host:
    """A host, and the installation that it should have; `words`: options of the hook. Refused: an option is wrong."""

    prefix: str
    hooks_dir: str
    words: tuple[str, ...] = ()
    wanted: installing.Wanted = field(init=False)

    def __post_init__(self) -> None:
        options, complaints = parse_options(list(self.words))
        if complaints:
            raise Refused(*complaints)
        places = Places(self.prefix, self.hooks_dir, HOST)
        wanted = installing.Wanted(PyzFile(PYZ), places, (KUBERNETES,), self.words, options)
        object.__setattr__(self, "wanted", wanted)

    @property
    def program(self) -> str:
        """The path of the program on the host, which the JSON has."""
        return self.wanted.places.program

    @property
    def options(self) -> list[str]:
        """The options for the JSON: the given ones, and those of the shipped file that they do not replace."""
        words: list[str] = json.loads(installing.make_hook_file(self.wanted, KUBERNETES))["hook"]["args"][2:]
        return words

    @property
    def resctrl_root(self) -> str:
        return self.wanted.options.resctrl_root

    @property
    def _paths(self) -> tuple[str, str, str]:
        """The owner's file, the program and the JSON, by their paths below /host."""
        places = self.wanted.places
        return places.at(places.owner), places.at(places.program), places.at(places.json(KUBERNETES))

    def _plan(self) -> list[Step]:
        """The steps: the owner's file first, since a program without it belongs to others.

        The program before the JSON: runtimes read a JSON as soon as it exists, and skip one without its program.
        """
        owner, program, hook_file = self._paths
        return [
            write_file(owner, f"{OWNER}\n".encode()),
            write_file(program, self.wanted.program, 0o755),
            write_file(hook_file, installing.make_hook_file(self.wanted, KUBERNETES).encode()),
        ]

    def install(self) -> list[str]:
        """Write the files; returns a line for each step. Refused, OSError: nothing was done."""
        problems = [*installing.find_problems(self.wanted)[0], *self._in_the_way(), *self.find_unfit()]
        if problems:
            raise Refused(*problems)
        with steps.lock_directory(os.path.dirname(self._paths[1])):
            return _take(self._plan())

    def is_installed(self) -> bool:
        """Whether all files are in place, with the content of this version and these options."""
        return all(step.is_done() for step in self._plan())

    def remove_json(self) -> list[str]:
        """Remove the JSON, so that no new container gets the hook. A file that calls another program stays."""
        return [] if self._in_the_way() else _take([remove_file(self._paths[2])])

    def remove_program(self) -> list[str]:
        """Remove the program. Call it once no container needs that: runtimes fail to remove one without its hook.

        The owner's file goes last: killed before that, a second call goes on from there.
        """
        if self.is_needed():
            return []
        owner, program, _ = self._paths
        return _take([remove_file(path) for path in (*steps.list_bytecode(program), program, owner)])

    def is_needed(self) -> bool:
        """Whether a removal must leave the program: it has another owner, or a JSON, so it was installed again."""
        owner, _, hook_file = self._paths
        found = hooksd.read_entry(hook_file).file
        return (found is not None and found.hook.path == self.program) or read_owner(owner) != OWNER

    def callers(self) -> tuple[list[str], list[str]]:
        """The callers of the program: live containers, and those that have ended but are not deleted; a line for each.

        The hooks in their config.json decide. A bundle exists from before its container runs until that is deleted,
        which under CRI-O lasts as long as the pod.
        """
        forms = ("*/config.json", "*/userdata/config.json")  # containerd's, CRI-O's
        configs = [Path(it) for form in forms for it in door.match(f"{BUNDLES}/{form}", door.Budget())]
        running = _list_running()
        live: list[str] = []
        ended: list[str] = []
        for path in sorted(configs):
            container = path.relative_to(BUNDLES).parts[0]
            if line := _caller(path, container, self.program):
                is_live = container in running or _is_young(path) or not _sees_all_processes()
                (live if is_live else ended).append(line)
        return live, ended

    def specs(self) -> list[str]:
        """The reasons why containerd would, or may, start no container without the program; a line for each."""
        remedy = "take it out of the configuration and restart containerd"
        calling, unclear = installing.find_calling_specs({self.program}, HOST)
        named = [f"containerd's base_runtime_spec {it} calls {self.program}: {remedy}" for it in calling]
        return [*named, *unclear]

    def find_unfit(self) -> list[str]:
        """The reasons why this node can run no hooks, or they would be useless."""
        if not can_monitor(self.resctrl_root):
            reason = "its CPU or its kernel has no resctrl that monitors: there is nothing to monitor with"
            return [f"{_system()}: {reason}; remedy: {_KEEP_OFF}"]
        return find_unfit_python(self.wanted.interpreter)

    def _in_the_way(self) -> list[str]:
        """Files of the same names that a package or `install` has installed; a line for each problem."""
        owner, program, hook_file = self._paths
        remedy = "remedy: uninstall it on the node first, or keep the chart off the node"
        found = hooksd.read_entry(hook_file).file
        if found is not None and found.hook.path != self.program:
            return [f"{hook_file} calls {found.hook.path}: the hook was installed by other means; {remedy}"]
        files = [path for path in (hook_file, program) if os.path.lexists(path)]
        if read_owner(owner) == OWNER or not files:
            return []
        return [f"{files[0]} is not the chart's: the hook was installed by other means; {remedy}"]


def _take(planned: list[Step]) -> list[str]:
    return steps.format_steps(steps.take_steps(planned, dry_run=False))


def _caller(config: Path, container: str, program: str) -> str | None:
    """Name a container if its config.json calls the program when it ends, or is unreadable; else None."""
    try:
        found = door.read_json(str(config), door.BUNDLE)
        hooks = found.get("hooks") or {}
        if not any(hook.get("path") == program for stage in hooks.values() for hook in stage or ()):
            return None
        annotations = found.get("annotations") or {}
        named = [next((str(annotations[key]) for key in keys if key in annotations), "?") for keys in _WHO]
    except (Unreadable, AttributeError, TypeError) as error:
        if isinstance(error, Unreadable) and error.is_missing:  # it was removed while we looked
            return None
        return f"{container[:12]}, whose config.json cannot be understood"
    return printable("{:.253}/{:.253} {:.253} ({:.12})".format(*named, container))


def _list_running() -> set[str | None]:
    """The IDs of the containers whose cgroups have a process. Cgroups below a container's own do not count."""
    places = {place for it in container_tasks.list_processes() for place in it.cgroups}
    return {cgroups.find_container_id(place) for place in places}


def _sees_all_processes() -> bool:
    """Whether this is the host's pid namespace: in another one all containers look ended."""
    return os.stat("/proc/self/ns/pid").st_ino == _FIRST_PID_NAMESPACE


def _is_young(config: Path) -> bool:
    """Whether a container may still be starting: its first process follows a moment after its config.json."""
    try:
        return abs(time.time() - config.stat().st_mtime) < YOUNG
    except FileNotFoundError:
        return False


def find_unfit_python(python: str) -> list[str]:
    """The reasons why hooks could not start on the host, so that each container would fail.

    The host's Python cannot run here, without the host's libraries. So this checks the name that the links lead to, and
    that the standard library of that version exists.
    """
    path = python
    for _ in range(_MOST_LINKS):
        if not path.startswith("/usr/"):
            remedy = f"remedy: an image whose .pyz was built with --python={os.path.dirname(python)}/python3.N"
            return [f"{_system()}: {python} leads to {path}, which is not in sight here; {remedy}"]
        if not os.path.islink(HOST + path):
            break
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(HOST + path)))
    if not (os.path.isfile(HOST + path) and os.access(HOST + path, os.X_OK)):
        return [
            f"{_system()} has no {python}: hooks cannot run there. Fedora CoreOS and Flatcar come without Python; "
            f"remedy: add it to the system, or {_KEEP_OFF}"
        ]
    version = re.fullmatch(r"python3\.([0-9]+)", os.path.basename(path))
    oldest = ".".join(map(str, OLDEST))
    if version is None or int(version[1]) < OLDEST[1]:
        return [f"{_system()}: {python} is {path}; remedy: Python {oldest} or newer"]
    if not any(os.path.isfile(f"{HOST}/usr/{lib}/{version[0]}/os.py") for lib in ("lib", "lib64")):
        return [f"{_system()}: {path} is there, but not its standard library"]
    return []


def _system() -> str:
    """The host's name and version of its system, from os-release."""
    with suppress(OSError):
        text = door.read_text(f"{HOST}/usr/lib/os-release", door.CONFIGURATION)
        if found := re.search(r'^PRETTY_NAME="?([^"\n]*)', text, re.MULTILINE):
            return found[1]
    return "this host"
