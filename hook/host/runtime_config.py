"""What the configurations of CRI-O and Podman say of hooks and of RDT: the few settings that matter to us.

They are TOML, of which Python before 3.11 has no reader. The settings are lists of texts and a text, on lines of their
own, and no name stands in two tables: so much can be read without one.
"""

from __future__ import annotations

import glob
import re

from hook.host import hooksd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_CRIO = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*")
_PODMAN = (
    "/usr/share/containers/containers.conf",
    "/etc/containers/containers.conf",
    "/etc/containers/containers.conf.d/*.conf",
)
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_TEXT = re.compile(r'"([^"]*)"|\'([^\']*)\'')


def of_crio(top: str = "") -> list[str]:
    """The hooks directories that CRI-O reads, the one that counts most last, by its configuration below `top`."""
    return _hooks_dirs(_CRIO, top)


def of_podman(top: str = "") -> list[str]:
    """The same of Podman, if nobody tells it otherwise by an option."""
    return _hooks_dirs(_PODMAN, top)


def rdt_config_file() -> str | None:
    """What CRI-O makes ctrl_groups by, if it does."""
    found = _settings(_CRIO, r'^\s*rdt_config_file\s*=\s*(["\'].*["\'])')
    texts = _texts(found[-1]) if found else []
    return texts[0] if texts and texts[0] else None


def _hooks_dirs(patterns: tuple[str, ...], top: str) -> list[str]:
    directories = [hooksd.SYSTEM]
    for value in _settings([top + pattern for pattern in patterns], r"^\s*hooks_dir\s*=\s*\[([^\]]*)\]"):
        texts = [text.rstrip("/") for text in _texts(value)]
        directories = [*directories, *texts] if re.search(r"append\s*=\s*true", value) else texts
    return directories


def _settings(patterns: Iterable[str], setting: str) -> list[str]:
    """What is said, the one that counts last. What cannot be read says nothing."""
    found: list[str] = []
    for path in [path for pattern in patterns for path in sorted(glob.glob(pattern))]:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                found += re.findall(setting, _COMMENT.sub("", file.read()), re.MULTILINE)
        except OSError:
            continue
    return found


def _texts(value: str) -> list[str]:
    return [one or other for one, other in _TEXT.findall(value)]
