"""The host's files: whether hooks can run there, what is put in place, and what is taken away.

What is done to them is the program's own install (hook/install.py), less what a host has systemd for. /host stands for
the host's root, as far as a container has it mounted: /usr, read-only, and the two directories that are written to.
/bundles is where the host's runtime keeps the bundles of containers.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hook import hooksd, steps
from hook import install as installing
from hook.machine import KUBERNETES, OLDEST
from hook.options import parse as parse_options
from hook.places import Places
from hook.shipped import Shipped
from hook.steps import Refused, Remove, Write

PYZ = "/app/resctrl-mon-hook.pyz"
HOST = "/host"
BUNDLES = "/bundles"
RESCTRL = "/sys/fs/resctrl"
"""A container has its own mount of sysfs, but what is in it is the kernel's: where to mount resctrl, if that has it."""
_MOST_LINKS = 8


@dataclass(frozen=True)
class Host:
    """A host and what it is to have: `words` are options of the hook. Refused: options that are wrong."""

    prefix: str
    hooks_dir: str
    words: tuple[str, ...] = ()
    wanted: installing.Wanted = field(init=False)

    def __post_init__(self) -> None:
        options, complaints = parse_options(list(self.words))
        if complaints:
            raise Refused(*complaints)
        places = Places(self.prefix, self.hooks_dir, HOST)
        wanted = installing.Wanted(Shipped(PYZ), places, (KUBERNETES,), self.words, options)
        object.__setattr__(self, "wanted", wanted)

    @property
    def program(self) -> str:
        """What containers call it by."""
        return self.wanted.places.program

    @property
    def options(self) -> list[str]:
        """Those that stand in the JSON: the given ones, and the shipped file's that these do not replace."""
        words: list[str] = json.loads(self._json.content)["hook"]["args"][2:]
        return words

    @property
    def resctrl_root(self) -> str:
        return self.wanted.options.resctrl_root

    @property
    def _program(self) -> Write:
        return Write(self.wanted.places.at(self.program), self.wanted.program, 0o755)

    @property
    def _json(self) -> Write:
        path = self.wanted.places.at(self.wanted.places.json(KUBERNETES))
        return Write(path, installing.hook_file(self.wanted, KUBERNETES).encode())

    def install(self) -> list[str]:
        """Put both files in place; a line on each thing that was done. Refused, OSError: nothing was.

        The program first: runtimes read a JSON as soon as it is there, and skip one whose program is missing.
        """
        problems = [*installing.look(self.wanted)[0], *self._in_the_way(), *unfit(self.wanted.interpreter)]
        if problems:
            raise Refused(*problems)
        with steps.alone(os.path.dirname(self._program.path)):
            return steps.told(steps.take([self._program, self._json], dry_run=False))

    def is_installed(self) -> bool:
        """Whether both files are in place, as this version and these options have them."""
        return self._program.is_done() and self._json.is_done()

    def remove_json(self) -> list[str]:
        """From then on no container is created with the hook. A file that calls another program stays."""
        return [] if self._in_the_way() else steps.told(steps.take([Remove(self._json.path)], dry_run=False))

    def remove_program(self) -> list[str]:
        """Only once nobody calls it: runtimes fail to remove a container whose hook is missing."""
        return steps.told(steps.take([Remove(self._program.path)], dry_run=False))

    def callers(self) -> list[str]:
        """The containers that call the program when they end, by the hooks in their configurations. Sorted.

        A bundle is there from before its container runs until after its poststop. One that cannot be read counts.
        """
        bundles = Path(BUNDLES)
        configs = [*bundles.glob("*/config.json"), *bundles.glob("*/userdata/config.json")]  # containerd's, CRI-O's
        return sorted(path.relative_to(bundles).parts[0] for path in configs if _calls(path, self.program))

    def _in_the_way(self) -> list[str]:
        """A package's JSON has the same name, and the path of the package's program in it."""
        found = hooksd.read(self._json.path).file
        if found is None or found.hook.path == self.program:
            return []
        return [
            f"{self._json.path} calls {found.hook.path}: the hook was installed by other means; remedy: keep either"
        ]


def _calls(config: Path, program: str) -> bool:
    """Whether a container's configuration has this program among its hooks, or cannot be understood."""
    try:
        hooks = json.loads(config.read_text(encoding="utf-8", errors="surrogateescape")).get("hooks") or {}
        return any(hook.get("path") == program for stage in hooks.values() for hook in stage or ())
    except FileNotFoundError:  # it was removed while we looked
        return False
    except (ValueError, AttributeError, TypeError):
        return True


def unfit(python: str) -> list[str]:
    """Why hooks would do nothing on the host, or not even start, if so: then each of its containers would fail.

    The host's Python cannot be run from here, for its libraries are the host's: what is looked at is the name that
    the links lead to, and that the standard library of that version is there.
    """
    if not os.path.isdir(RESCTRL):
        reason = "its CPU or its kernel has no resctrl: there is nothing to monitor with"
        return [f"{_system()}: {reason}; remedy: keep this DaemonSet off such nodes (nodeSelector, affinity)"]
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
            "remedy: add it to the system, or keep this DaemonSet off such nodes (nodeSelector, affinity)"
        ]
    version = re.fullmatch(r"python3\.([0-9]+)", os.path.basename(path))
    oldest = ".".join(map(str, OLDEST))
    if version is None or int(version[1]) < OLDEST[1]:
        return [f"{_system()}: {python} is {path}; remedy: Python {oldest} or newer"]
    if not any(os.path.isfile(f"{HOST}/usr/{lib}/{version[0]}/os.py") for lib in ("lib", "lib64")):
        return [f"{_system()}: {path} is there, but not its standard library"]
    return []


def _system() -> str:
    """What the host calls itself."""
    with suppress(OSError):
        text = Path(f"{HOST}/usr/lib/os-release").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r'^PRETTY_NAME="?([^"\n]*)', text, re.MULTILINE):
            return found[1]
    return "this host"
