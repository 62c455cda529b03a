# SPDX-License-Identifier: Apache-2.0
"""Finds the owner of an installation: a package, the Helm chart, a MachineConfig, or `install`.

The owner writes the files again: dpkg and rpm with the next version, the chart's pod when it starts. So `install` and
`uninstall` do not change files of another owner, and the remedies of `doctor` depend on the owner.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from hook.install.file_steps import Refused
from hook.node import door, hooksd, programs
from hook.node.door import Unreadable
from hook.node.machine import TARGETS
from hook.node.paths import CHART_MARK, MACHINE_CONFIG_MARK, NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.node.paths import Places

_ALIASES = re.compile(r"^/usr(?=/(?:bin|lib|sbin)/)")
_OWNER = "owned by "
_RPM_DATABASES = ("/usr/lib/sysimage/rpm", "/var/lib/rpm")
_RPM_FILES = ("rpmdb.sqlite", "Packages.db", "Packages")


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
CHART = Origin(
    "the Helm chart",
    "kubectl describe the chart's pod on this node; set options in the chart's values",
    "helm uninstall",
    link=False,
    timer=False,
)
MACHINE_CONFIG = Origin(
    "a MachineConfig", "apply the MachineConfig again", "remove it (see the documentation on OpenShift)", link=False
)


def find_owner(places: Places) -> Origin:
    """The owner of the files at these paths; `install` if no other owner is found. Raises Refused."""
    if package := _find_package(places):
        return package
    if _is_from_chart(places):
        return CHART
    return MACHINE_CONFIG if _is_from_machine_config(places) else INSTALL


def refuse_others(places: Places) -> None:
    """Raise Refused if an installation has an owner other than `install`, or an unknown one."""
    found = find_owner(places)
    if found is not INSTALL:
        raise Refused(f"{NAME} was installed by {found.name}; remedy: {found.away} first, or --force")


def _is_from_chart(places: Places) -> bool:
    """The chart's mark is beside the program that hooks.d calls, wherever that is."""
    called = [hooksd.read(places.json(target)).file for target in TARGETS]
    directories = {os.path.dirname(file.hook.path) for file in called if file is not None}
    return any(os.path.lexists(f"{it}/{CHART_MARK}") for it in {places.program_dir, *directories})


def _is_from_machine_config(places: Places) -> bool:
    try:
        return MACHINE_CONFIG_MARK.encode() in door.read(places.conf, door.CONFIGURATION)
    except Unreadable:
        return False


# --- Packages


def _find_package(places: Places) -> Origin | None:
    """The package that owns one of the files.

    Does not ask about the program: a removed package leaves it while containers still call it. Nor about the timer's
    file of options, which is the administrator's.
    """
    asked = [it for it in places.files() if it not in (places.program, places.conf) and os.path.lexists(it)]
    if not asked:
        return None
    if name := _ask_dpkg(asked):
        return Origin(f"the package {name}", f"apt install --reinstall {name}", f"apt remove {name}")
    if name := _ask_rpm(asked):
        return Origin(f"the package {name}", f"dnf reinstall {name}", f"dnf remove {name}")
    return None


def _ask_dpkg(paths: list[str]) -> str | None:
    """The package in dpkg that owns one of these files. Raises Refused if dpkg does not answer."""
    if programs.find("dpkg-query") is None:
        return None
    # On a merged /usr dpkg knows a file by the path that its package has for it.
    known = {alias for path in paths for alias in (path, _ALIASES.sub("", path))}
    ended = programs.run(["dpkg-query", "--search", *sorted(known)])
    if ended.status not in (0, 1):  # 1: a file has no owner
        raise Refused(
            f"cannot find the package of {paths[0]}: dpkg-query: {ended.problem}; remedy: fix dpkg, or --force"
        )
    return _parse_dpkg_output(ended.output.splitlines())


def _parse_dpkg_output(lines: list[str]) -> str | None:
    """The first owner in the output of `dpkg-query --search`: `PACKAGE, PACKAGE: PATH`.

    A diverted path belongs to the package that diverts it; a locally diverted one to none.
    """
    diverted: dict[str, str] = {}
    owners: dict[str, list[str]] = {}
    for line in lines:
        who, _, path = line.rpartition(": ")
        diversion = re.fullmatch(r"(?:local diversion|diversion by (.+)) from", who)
        if diversion:
            diverted[path] = diversion[1] or ""
        elif not re.fullmatch(r"(?:local diversion|diversion by .+) to", who):
            owners[path] = [name.partition(":")[0] for name in who.split(", ")]
    found = [name for path, all_ in owners.items() for name in all_ if diverted.get(path, name) == name]
    return found[0] if found else None


def _ask_rpm(paths: list[str]) -> str | None:
    """The package in rpm that owns one of these files. rpm compares directories by inode: any alias will do.

    Only if a database exists: rpm would create one.
    """
    known = [top for top in _RPM_DATABASES if any(os.path.exists(f"{top}/{name}") for name in _RPM_FILES)]
    if not known or programs.find("rpm") is None:
        return None
    form = ("--query", "--file", "--queryformat", f"{_OWNER}%{{NAME}}\n")
    ended = programs.run(["rpm", f"--dbpath={known[0]}", *form, *paths])
    if ended.status is None:
        raise Refused(f"cannot find the package of {paths[0]}: rpm: {ended.problem}; remedy: fix rpm, or --force")
    owners = [line[len(_OWNER) :] for line in ended.output.splitlines() if line.startswith(_OWNER)]
    return owners[0] if owners else None
