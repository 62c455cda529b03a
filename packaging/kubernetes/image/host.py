# SPDX-License-Identifier: Apache-2.0
"""Installs and removes the chart's files on the host.

The steps are those of hook/install/, without the ones that need systemd. /host is the host's root,
of which a container has mounted /usr, read-only, and the directories that it writes to.

Each step holds the locks of the program's directory and of hooksDir, as `install` does. It first
reads the owner's file beside the program: the word `chart`, the release, and its hooksDir, a line
each. Then it reads what the files in hooksDir call: an installation with another prefix has its
owner's file elsewhere. A release touches nothing of another one, of a package or of `install`, nor
of its successor.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hook.entry import parse as parse_options
from hook.install import install as installing
from hook.install.install import (
    Program,
    Refused,
    Step,
    format_steps,
    lock_directories,
    remove_file,
    take_steps,
    write_file,
)
from hook.models import Options
from hook.node import hooksd
from hook.node.paths import KUBERNETES, Places, find_prefix, is_stub, read_owner
from hook.node.programs import run_program
from hook.reconcile.run import end_all_keys

from ready import can_monitor

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

SHIPPED = "/app/resctrl-mon-hook"
"""The ELF file for the host, in the image."""
HOST = "/host"
OWNER = "chart"
"""The word that begins the owner's file beside the program, which `install`,
`doctor` and a later pod read.
"""
_KEEP_OFF = "keep this DaemonSet off such nodes (nodeSelector, affinity)"
_REMEDY = "remedy: uninstall it on the node first, or keep the chart off the node"


@dataclass(frozen=True)
class Host:
    """A host, and the installation that it should have.

    Raises Refused if one of `words`, the hook's options, is wrong,
    or if the image's file is damaged.

    `release` is the namespace and the name of the Helm release, and `before` the Unix time at which
    its removal began, which does not touch what was installed later.
    """

    prefix: str
    hooks_dir: str
    words: tuple[str, ...] = ()
    release: str = ""
    before: float = math.inf
    wanted: installing.Wanted = field(init=False)
    parsed: Options = field(init=False)
    """The options of the hook."""

    def __post_init__(self) -> None:
        parsed, complaints = parse_options(list(self.words))
        if complaints:
            raise Refused(*complaints)
        places = Places(self.prefix, self.hooks_dir, HOST)
        try:
            shipped = Program(SHIPPED)
        except ValueError as error:
            raise Refused(f"{error}; remedy: make the image again") from None
        object.__setattr__(
            self, "wanted", installing.Wanted(shipped, places, (KUBERNETES,), self.words)
        )
        object.__setattr__(self, "parsed", parsed)

    @property
    def program(self) -> str:
        """Return the path of the program on the host, which the JSON has."""
        return self.wanted.places.program

    @property
    def options(self) -> list[str]:
        """Return the options for the JSON: the given ones,
        and those of the shipped file that they do not replace.
        """
        words: list[str] = json.loads(installing.make_hook_file(self.wanted, KUBERNETES))["hook"][
            "args"
        ][2:]
        return words

    @property
    def resctrl_root(self) -> str:
        return self.parsed.resctrl_root

    @property
    def _paths(self) -> tuple[str, str, str]:
        """Return the owner's file, the program and the JSON, by their paths below /host."""
        places = self.wanted.places
        return (
            places.at(places.owner),
            places.at(places.program),
            places.at(places.json(KUBERNETES)),
        )

    def _plan(self) -> list[Step]:
        """Return the steps: the owner's file first, since a program without it belongs to others.

        The program before the JSON: runtimes read a JSON as soon as it exists,
        and skip one without its program.
        """
        owner, program, hook_file = self._paths
        places = self.wanted.places
        text = installing.make_hook_file(self.wanted, KUBERNETES)
        return [
            write_file(owner, f"{OWNER}\n{self.release}\n{self.hooks_dir}\n".encode()),
            remove_file(places.at(places.stub_tmpfiles)),
            write_file(program, self.wanted.shipped.data, 0o755, _try),
            # Also one that was in place already.
            write_file(hook_file, text.encode(), check=lambda _: _try(program)),
        ]

    def install(self) -> list[str]:
        """Write the files; returns a line for each step.

        After Refused or OSError runtimes start what they did.
        """
        owner, program, _ = self._paths
        with self._lock():
            problems = [
                *installing.find_problems(self.wanted),
                *self._in_the_way(),
                *self.find_unfit(),
            ]
            if problems:
                raise Refused(*problems)
            is_first = not os.path.lexists(owner)
            try:
                taken = _take(self._plan())
            except Refused:
                if is_first and (is_stub(program) or not os.path.lexists(program)):
                    _take([remove_file(owner)])
                raise
            os.utime(owner)  # a removal that began before this leaves it alone
            return taken

    def is_installed(self) -> bool:
        """Return whether all files are in place,
        with the content of this version and these options.
        """
        return all(step.is_done() for step in self._plan())

    @property
    def installed_at(self) -> float:
        """Return since when the JSON is as it is, as a Unix time. Raises OSError."""
        return os.stat(self._paths[2]).st_mtime

    def remove_json(self) -> list[str]:
        """Remove the JSON, so that no new container gets the hook; returns a line for each step."""
        hook_file = self._paths[2]
        with self._lock():
            if not self._is_own():
                return []
            if (called := self._find_called()).get(hook_file, self.program) != self.program:
                return [
                    f"left: {hook_file} calls {called[hook_file]}: it belongs to another "
                    "installation"
                ]
            return _take([remove_file(hook_file)])

    def remove_program(self) -> list[str]:
        """End all keys, and put a stub into the program's place; returns a line for each step.

        Refused: a key is left.

        The keys stay if another installation uses hooksDir, since they may be
        those of its containers. The owner's file goes last: killed before that, a
        second call goes on from there.
        """
        owner, program, _ = self._paths
        with self._lock():
            called = self._find_called()
            if not self._is_own() or self.program in called.values():
                return []
            lines = [
                f"left: all keys: {path} calls {other}: another installation"
                for path, other in called.items()
            ]
            if not called:
                ended = end_all_keys(self.parsed)
                if ended.unfinished:
                    raise Refused(*ended.unfinished)
                lines = [f"left: {line}" for line in ended.left]
            # Without a program: what is left of a killed step.
            first = (
                installing.plan_stub(self.wanted.places)
                if os.path.lexists(program)
                else [remove_file(program)]
            )
            return [*lines, *_take([*first, remove_file(owner)])]

    def _lock(self) -> AbstractContextManager[None]:
        _, program, hook_file = self._paths
        return lock_directories(os.path.dirname(program), os.path.dirname(hook_file))

    def _find_called(self) -> dict[str, str]:
        """Return the programs of this project that the files in hooksDir call,
        by the paths of the files.
        """
        entries = hooksd.read_directory(self.wanted.places.at(self.hooks_dir))
        return {entry.path: entry.our_hook.path for entry in entries if entry.our_hook is not None}

    def _is_own(self) -> bool:
        """Return whether this release owns the installation,
        and has not installed it again since its removal began.
        """
        owner = self._paths[0]
        return (
            self._read_owner() in ([OWNER], self._owner) and os.stat(owner).st_mtime <= self.before
        )

    @property
    def _owner(self) -> list[str]:
        return [OWNER, self.release, self.hooks_dir]

    def _read_owner(self) -> list[str]:
        """Return the lines of the owner's file; none if there is no such file.

        An older chart's has one.
        """
        return (read_owner(self._paths[0]) or "").splitlines()

    def find_unfit(self) -> list[str]:
        """Return why hooks would be useless on this node."""
        if can_monitor(self.resctrl_root):
            return []
        reason = (
            "the node's CPU or its kernel has no resctrl that monitors: there is nothing to "
            "monitor with"
        )
        return [f"{reason}; remedy: {_KEEP_OFF}"]

    def _in_the_way(self) -> list[str]:
        """Return a line for each file that another release,
        a package or `install` has installed.
        """
        _, program, hook_file = self._paths
        entry = hooksd.read_entry(hook_file).file
        if entry is not None and entry.hook.path != self.program:
            prefix = find_prefix(entry.hook.path)
            ours = (
                f"; if this release did that: set prefix={prefix}, or helm uninstall first"
                if prefix
                else ""
            )
            return [
                f"{hook_file} calls {entry.hook.path}: the hook was installed by other means; "
                f"{_REMEDY}{ours}"
            ]
        has = self._read_owner()
        if has[:1] == [OWNER] and has[1:] not in ([], self._owner[1:]):
            release, hooks_dir = [*has[1:], "", ""][:2]
            if release != self.release:
                return [
                    f"the Helm release {release} has installed the hook: helm uninstall that first"
                ]
            return [
                f"the hook is installed with hooksDir={hooks_dir}: set that, or helm uninstall "
                "first"
            ]
        files = [
            path for path in (hook_file, program) if os.path.lexists(path) and not is_stub(path)
        ]
        if has[:1] == [OWNER] or not files:
            return []
        return [f"{files[0]} is not the chart's: the hook was installed by other means; {_REMEDY}"]


def _try(path: str) -> None:
    """Raise Refused if the program does not run here.

    This container's file systems are mounted as the host's are.
    """
    installing.check_end(path, run_program([path, "--version"]))


def _take(planned: list[Step]) -> list[str]:
    return format_steps(take_steps(planned, dry_run=False))
