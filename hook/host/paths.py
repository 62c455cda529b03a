"""Where an installation has what, and by what its files are told from those of others."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hook.host import hooksd
from hook.host.machine import TARGETS
from hook.host.pyz_file import is_shipped

NAME = "resctrl-mon-hook"
PROGRAM = f"{NAME}.pyz"
CONF_MARK = f"# Made by `{NAME} install`"
MACHINE_CONFIG_MARK = "# Made by the MachineConfig"
CHART_MARK = f"{NAME}.chart"
USR = "/usr"


def hooks_dir(prefix: str) -> str:
    """Where the JSON goes by default: where /usr is not to be written, into the directory for administrators."""
    return hooksd.SYSTEM if prefix == USR else hooksd.ADMINISTRATOR


def prefix_of(program: str) -> str | None:
    """Below which prefix a program of ours lies; None: not where an installation has it."""
    end = Places("").program
    return program[: -len(end)] if program.endswith(end) else None


@dataclass(frozen=True)
class Places:
    """The paths of an installation as the running system knows them. `top`: the directory that they lie below now."""

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
    def chart_mark(self) -> str:
        """A file that says that the Helm chart owns the program, and will take it away."""
        return f"{self.program_dir}/{CHART_MARK}"

    @property
    def link(self) -> str:
        return f"{self.prefix}/bin/{NAME}"

    @property
    def link_target(self) -> str:
        """Relative, so that it is right below any `top`."""
        return os.path.relpath(self.program, os.path.dirname(self.link))

    def _configuration(self, name: str) -> str:
        """What a system reads from /usr/lib as a package has it, and from /etc as an administrator has."""
        return f"/usr/lib/{name}" if self.prefix == USR else f"/etc/{name}"

    @property
    def service(self) -> str:
        return self._configuration(f"systemd/system/{NAME}-reconcile.service")

    @property
    def timer(self) -> str:
        return self._configuration(f"systemd/system/{NAME}-reconcile.timer")

    @property
    def tmpfiles(self) -> str:
        return self._configuration(f"tmpfiles.d/{NAME}.conf")

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
        """Where a path of the running system lies now."""
        return self.top + path

    def files(self) -> list[str]:
        """Everything that an installation may have."""
        others = [self.service, self.timer, self.tmpfiles, self.conf]
        return [self.program, self.link, *others, *(self.json(target) for target in TARGETS)]

    def is_strange(self, path: str) -> bool:
        """Whether somebody else's file is in one of these places."""
        found = self.at(path)
        if not os.path.lexists(found):
            return False
        if path == self.link:
            return not os.path.islink(found) or os.path.basename(os.readlink(found)) != PROGRAM
        if os.path.islink(found) or not os.path.isfile(found):
            return True
        if path == self.program:
            return not is_shipped(found)
        if path.endswith(".json"):
            return not hooksd.read(found).calls(PROGRAM)
        mark = CONF_MARK if path == self.conf else NAME
        with open(found, encoding="utf-8", errors="replace") as file:
            return mark not in file.read()
