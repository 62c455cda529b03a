"""By what means a node has got the hook: by a package, the Helm chart, a MachineConfig, or `install`.

Whoever put the files there goes on to own them: dpkg and rpm write them again with the next version, and the chart's
pod does so when it starts. So `install` and `uninstall` leave them alone, and `doctor` names the remedy that fits.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from hook.host import hooksd, programs
from hook.host.machine import TARGETS
from hook.host.paths import CHART_MARK, MACHINE_CONFIG_MARK, NAME
from hook.install.file_steps import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.host.paths import Places

_ALIASES = re.compile(r"^/usr(?=/(?:bin|lib|sbin)/)")
_OWNER = "owned by "
_RPM_DATABASES = ("/usr/lib/sysimage/rpm", "/var/lib/rpm")
_RPM_FILES = ("rpmdb.sqlite", "Packages.db", "Packages")


@dataclass(frozen=True)
class Origin:
    """Who owns an installation. `again`: how its files come back; `away`: how they go.

    `link`, `timer`: whether they are part of it.
    """

    name: str
    again: str
    away: str
    link: bool = True
    timer: bool = True


INSTALL = Origin("`install`", f"{NAME}.pyz install", f"{NAME} uninstall")
CHART = Origin(
    "the Helm chart",
    "kubectl describe the chart's pod on this node; options belong in the chart's values",
    "helm uninstall",
    link=False,
    timer=False,
)
MACHINE_CONFIG = Origin(
    "a MachineConfig", "apply the MachineConfig again", "see the README on how to take it off", link=False
)


def of(places: Places) -> Origin:
    """Who owns what lies in these places of the running system. `install` if nothing else is known. Raises Refused."""
    if package := _package(places):
        return package
    if _is_of_chart(places):
        return CHART
    return MACHINE_CONFIG if _is_of_machine_config(places) else INSTALL


def refuse_others(places: Places) -> None:
    """Raises Refused if somebody else than `install` owns an installation, or if that cannot be found out."""
    found = of(places)
    if found is not INSTALL:
        raise Refused(f"{NAME} was installed by {found.name}; remedy: {found.away} first, or --force")


def _is_of_chart(places: Places) -> bool:
    """Its mark lies beside the program: beside the one that is called from here, wherever that is."""
    called = [hooksd.read(places.json(target)).file for target in TARGETS]
    directories = {os.path.dirname(file.hook.path) for file in called if file is not None}
    return any(os.path.lexists(f"{it}/{CHART_MARK}") for it in {places.program_dir, *directories})


def _is_of_machine_config(places: Places) -> bool:
    try:
        with open(places.conf, encoding="utf-8", errors="replace") as file:
            return MACHINE_CONFIG_MARK in file.read()
    except OSError:
        return False


# --- Packages


def _package(places: Places) -> Origin | None:
    """The package that owns one of the files.

    The program is not asked about: a package that was removed may have left it to those who still call it. Nor are the
    options of the timer, which are an administrator's.
    """
    asked = [it for it in places.files() if it not in (places.program, places.conf) and os.path.lexists(it)]
    if not asked:
        return None
    if name := _owner_by_dpkg(asked):
        return Origin(f"the package {name}", f"apt install --reinstall {name}", f"apt remove {name}")
    if name := _owner_by_rpm(asked):
        return Origin(f"the package {name}", f"dnf reinstall {name}", f"dnf remove {name}")
    return None


def _owner_by_dpkg(paths: list[str]) -> str | None:
    """A package of dpkg's that has one of these files. Raises Refused if dpkg does not answer."""
    if programs.find("dpkg-query") is None:
        return None
    # On a merged /usr dpkg knows a file by the path that its package has for it.
    known = {alias for path in paths for alias in (path, _ALIASES.sub("", path))}
    ended = programs.run(["dpkg-query", "--search", *sorted(known)])
    if ended.status not in (0, 1):  # 1: some are nobody's
        raise Refused(
            f"cannot find the package of {paths[0]}: dpkg-query: {ended.problem}; remedy: fix dpkg, or --force"
        )
    return _owner_in(ended.output.splitlines())


def _owner_in(lines: list[str]) -> str | None:
    """The first owner in what `dpkg-query --search` prints: `PACKAGE, PACKAGE: PATH`.

    The file of a diverted path is that of the package that diverts it; a local diversion has none.
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


def _owner_by_rpm(paths: list[str]) -> str | None:
    """A package of rpm's that has one of these files. It knows a directory by what it is, not by its path.

    Only where there is a database: rpm would make one.
    """
    known = [top for top in _RPM_DATABASES if any(os.path.exists(f"{top}/{name}") for name in _RPM_FILES)]
    if not known or programs.find("rpm") is None:
        return None
    form = ("--query", "--file", "--queryformat", f"{_OWNER}%{{NAME}}\n")
    ended = programs.run(["rpm", f"--dbpath={known[0]}", *form, *paths])
    if ended.status is None:
        raise Refused(f"cannot ask rpm who owns {paths[0]}: {ended.problem}; remedy: fix rpm, or --force")
    owners = [line[len(_OWNER) :] for line in ended.output.splitlines() if line.startswith(_OWNER)]
    return owners[0] if owners else None
