# SPDX-License-Identifier: Apache-2.0
"""The paths of an installation, and how to recognize its files."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hook.node import door, hooksd
from hook.node.door import Unreadable
from hook.node.machine import TARGETS
from hook.node.pyz_file import is_pyz

NAME = "resctrl-mon-hook"
PROGRAM = f"{NAME}.pyz"
CONF_MARK = f"# Made by `{NAME} install`"
OWNER_FILE = f"{NAME}.owner"
USR = "/usr"


def choose_hooks_dir(prefix: str) -> str:
    """The default directory of the JSON: the administrator's, unless the prefix is /usr."""
    return hooksd.SYSTEM if prefix == USR else hooksd.ADMINISTRATOR


def find_prefix(program: str) -> str | None:
    """The prefix of an installed program; None if it is not at a path of an installation."""
    end = Places("").program
    return program[: -len(end)] if program.endswith(end) else None


@dataclass(frozen=True)
class Places:
    """The paths of an installation on the system where it runs. `top`: the directory that has them now (--destdir)."""

    prefix: str = USR
    hooks_dir: str = hooksd.SYSTEM
    top: str = ""

    @property
    def program_dir(self) -> str:
        return f"{self.prefix}/libexec/oci/hooks.d"

    @property
    def program(self) -> str:
        return f"{self.program_dir}/{PROGRAM}"

    @property
    def owner(self) -> str:
        """The file that names the owner of the installation; `install` itself makes none."""
        return f"{self.program_dir}/{OWNER_FILE}"

    @property
    def link(self) -> str:
        return f"{self.prefix}/bin/{NAME}"

    @property
    def link_target(self) -> str:
        """Relative, so that it is valid below any `top`."""
        return os.path.relpath(self.program, os.path.dirname(self.link))

    def _place_configuration(self, name: str) -> str:
        """In /usr/lib, like a package, if the prefix is /usr; else in /etc, like an administrator."""
        return f"/usr/lib/{name}" if self.prefix == USR else f"/etc/{name}"

    @property
    def service(self) -> str:
        return self._place_configuration(f"systemd/system/{NAME}-reconcile.service")

    @property
    def timer(self) -> str:
        return self._place_configuration(f"systemd/system/{NAME}-reconcile.timer")

    @property
    def watch(self) -> str:
        """The unit of `watch`, which is enabled only if it is asked for."""
        return self._place_configuration(f"systemd/system/{NAME}-watch.service")

    @property
    def textfile_service(self) -> str:
        return self._place_configuration(f"systemd/system/{NAME}-textfile.service")

    @property
    def textfile_timer(self) -> str:
        """The timer of `metrics --textfile`, which only an administrator enables."""
        return self._place_configuration(f"systemd/system/{NAME}-textfile.timer")

    @property
    def metrics_service(self) -> str:
        """The unit of `metrics --listen`, which only an administrator enables."""
        return self._place_configuration(f"systemd/system/{NAME}-metrics.service")

    @property
    def units(self) -> list[str]:
        """All units."""
        textfile = [self.textfile_service, self.textfile_timer]
        return [self.service, self.timer, self.watch, *textfile, self.metrics_service]

    @property
    def tmpfiles(self) -> str:
        return self._place_configuration(f"tmpfiles.d/{NAME}.conf")

    @property
    def conf_dir(self) -> str:
        return f"/etc/{NAME}"

    @property
    def conf(self) -> str:
        """The options of the timer's reconcile."""
        return f"{self.conf_dir}/reconcile.conf"

    def json(self, target: str) -> str:
        """The hooks.d file for a target."""
        return f"{self.hooks_dir}/10-{NAME}-{target}.json"

    def at(self, path: str) -> str:
        """A path with `top` before it."""
        return self.top + path

    def files(self) -> list[str]:
        """All files that an installation may have."""
        others = [self.tmpfiles, self.conf]
        return [self.program, self.link, *self.units, *others, *(self.json(target) for target in TARGETS)]

    def is_foreign(self, path: str) -> bool:
        """Whether a file at this path exists and was not installed by us."""
        found = self.at(path)
        if not os.path.lexists(found):
            return False
        if path == self.link:
            return not os.path.islink(found) or os.path.basename(os.readlink(found)) != PROGRAM
        if os.path.islink(found) or not os.path.isfile(found):
            return True
        if path == self.program:
            return not is_pyz(found)
        if path.endswith(".json"):
            return not hooksd.read(found).calls(PROGRAM)
        mark = CONF_MARK if path == self.conf else NAME
        try:
            return mark.encode() not in door.read(found, door.CONFIGURATION)
        except Unreadable:
            return True


# --- Owners


@dataclass(frozen=True)
class Origin:
    """The owner of an installation. `again`: how to install its files again; `away`: how to remove them.

    `link`, `timer`: whether the installation has them.
    """

    name: str
    again: str
    away: str
    link: bool = True
    timer: bool = True


INSTALL = Origin("`install`", f"{NAME}.pyz install", f"{NAME} uninstall")
_PACKAGE = f"the package {NAME}"
OWNERS = {
    "deb": Origin(_PACKAGE, f"apt install --reinstall {NAME}", f"apt remove {NAME}"),
    "rpm": Origin(_PACKAGE, f"dnf reinstall {NAME}", f"dnf remove {NAME}"),
    "chart": Origin(
        "the Helm chart",
        "kubectl describe the chart's pod on this node; set options in the chart's values",
        "helm uninstall",
        link=False,
        timer=False,
    ),
    "machineconfig": Origin(
        "a MachineConfig", "apply the MachineConfig again", "remove it (see the documentation on OpenShift)", link=False
    ),
}
"""The owners that this project makes, by the word in their file. Others may use words of their own."""


def find_origin(places: Places) -> Origin:
    """The owner named beside the program of these paths, or beside one that their hooks.d files call.

    The owner writes the files again: dpkg and rpm with the next version, the chart's pod when it starts. So `install`
    and `uninstall` do not change files of another owner, and the remedies of `doctor` depend on the owner.
    """
    called = [hooksd.read(places.json(target)).file for target in TARGETS]
    programs = [places.program, *(file.hook.path for file in called if file is not None)]
    words = [read_owner(f"{os.path.dirname(it)}/{OWNER_FILE}") for it in programs]
    word = next((it for it in words if it is not None), None)
    if word is None:
        return INSTALL
    return OWNERS.get(word, Origin(word, f"install it again with {word}", f"remove it with {word}"))


def read_owner(path: str) -> str | None:
    """The line in an owner's file; None if there is no file. One that cannot be read has an unknown owner."""
    if not os.path.lexists(path):
        return None
    try:
        return door.read_text(path, door.CONFIGURATION).strip() or "an unknown owner"
    except Unreadable:
        return "an unknown owner"
