# SPDX-License-Identifier: Apache-2.0
"""`doctor --report`: what the kernel shows of a machine, for its maintainers. It names no pod, container or group."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from hook import __version__, resctrl, system
from hook.doctor import Finding, Site
from hook.doctor.checks import name_tool
from hook.errors import HookError
from hook.install.program import Program
from hook.node import files

_LARGEST = 4096  # bytes of each file of the kernel's
_HEAD = 1 << 16  # bytes of /proc/cpuinfo, which has the first CPU first
_MOST_FILES, _DEEPEST = 1000, 4  # of a tree of the kernel's
_CPU = ("vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "CPU implementer", "CPU part")
_FLAGS = ("cqm", "cat_l", "cdp_l", "mba", "smba", "rdt_", "bmec", "abmc", "sdciae", "mpam")
_NAMELESS = ("root", "resctrl", "counters", "program", "runtimes", "containerd", "reconcile", "watch")
"""The checks whose findings name nothing that a user has named. A finding that a check could not be made may."""
_OF_GROUPS = ("last_cmd_status",)  # the kernel's complaint about the last command may name its group


def make_report(site: Site, findings: Iterable[tuple[str, Finding]]) -> dict[str, Any]:
    """Return the object that `doctor --report` prints. Each finding comes with the name of its check."""
    root, uname = site.options.resctrl_root, os.uname()
    pmt = system.try_call(files.match, "/sys/class/intel_pmt/*/guid") or []
    return {
        "program": {
            "version": __version__,
            "python": platform.python_version(),
            "called": [*map(_find_form, site.programs)],
        },
        "kernel": {"release": uname.release, "version": uname.version, "machine": uname.machine},
        "boot": [word for word in _read("/proc/cmdline").split() if word.startswith(("rdt=", "clearcpuid="))],
        "cpu": {"number": os.cpu_count(), **dict(_read_cpu())},
        "filesystems": _read("/proc/filesystems").split(),
        "mounts": [
            words[3] for words in map(str.split, _read("/proc/mounts", _HEAD).split("\n")) if "resctrl" in words
        ],
        "telemetry": {path: _read(path) for path in pmt},
        "info": {path[len(root) + 1 :]: _read(path) for path in _walk(f"{root}/info")},
        "mon_data": {path[len(root) + 1 :]: _read(path) for path in _walk(f"{root}/mon_data")},
        "groups": dict(_look_at_groups(site)),
        "findings": [_strip(check, found) for check, found in findings],
    }


def _find_form(path: str) -> str:
    try:
        return "ELF" if Program(path).python is None else "pyz"
    except (OSError, ValueError):
        return "not ours"


def _read(path: str, size: int = _LARGEST) -> str:
    """Return the head of a file; if the kernel refuses to show it, the name of the error."""
    try:
        return files.read_head(path, size).decode("ascii", "replace").strip()
    except files.Unreadable as error:
        return error.why


def _walk(top: str, depth: int = _DEEPEST) -> Iterator[str]:
    """Yield the paths of the files in a tree of the kernel's, as far as it is bounded."""
    for name in (system.try_call(files.list_names, top) or [])[:_MOST_FILES]:
        path = f"{top}/{name}"
        if os.path.isdir(path) and depth:
            yield from _walk(path, depth - 1)
        elif name not in _OF_GROUPS:
            yield path


def _read_cpu() -> Iterator[tuple[str, str | list[str]]]:
    first = _read("/proc/cpuinfo", _HEAD).partition("\n\n")[0]
    for name, _, value in (line.partition(":") for line in first.split("\n")):
        if name.strip() in _CPU:
            yield name.strip(), value.strip()
        elif name.strip() in ("flags", "Features"):
            yield "flags", [flag for flag in value.split() if flag.startswith(_FLAGS)]


def _look_at_groups(site: Site) -> Iterator[tuple[str, Any]]:
    """Yield the numbers of RMIDs and of groups by owner, and how often each counter of the groups is a number."""
    kernel, prefix, texts = resctrl.Resctrl(site.options.resctrl_root), site.options.group_prefix, Counter[str]()
    with suppress(HookError, OSError):
        ctrl_groups = resctrl.list_ctrl_groups(kernel.root)
        paths = [path for mon_groups in ctrl_groups.values() for path in mon_groups]
        names = map(os.path.basename, paths)
        yield "ctrl_groups", len(ctrl_groups)
        yield "mon_groups", Counter("ours" if name.startswith(prefix) else name_tool(name) for name in names)
        for path in paths:
            with suppress(HookError):  # it is gone
                shown = kernel.counters(path).items()
                texts.update(f"{counter}: {'a number' if text[:1].isdigit() else text}" for counter, text in shown)
        yield "counters", texts
        yield "rmids", site.snapshot.rmids.limit if site.snapshot.rmids is not None else None
        yield "unmonitored", Counter(failure.reason for failure in site.snapshot.failures)


def _strip(check: str, found: Finding) -> dict[str, str]:
    """Return a finding without what may have names in it."""
    is_nameless = check in _NAMELESS and not found.found.startswith("cannot check")
    return {"level": found.level.lower(), "check": check, **({"found": found.found} if is_nameless else {})}
