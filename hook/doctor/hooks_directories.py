# SPDX-License-Identifier: Apache-2.0
"""Checks of hooks.d: our files, and other files that affect ours."""

from __future__ import annotations

import os

from hook.doctor.finding import FAILURE, OK, WARNING, Finding, name_first
from hook.host import hooksd, programs, runtime_config
from hook.host.machine import KUBERNETES, PODMAN
from hook.host.paths import NAME, PROGRAM
from hook.stages.context import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hook.doctor.site import Site
    from hook.host.hooksd import Entry

_SHORTEST_TIMEOUT = 10  # seconds: the hook itself waits up to 2.5, and the node may be overloaded


def check_hooks_directories(site: Site) -> Iterator[Finding]:
    for directory in site.hooks_dirs:
        entries = hooksd.read_directory(directory)
        readers = hooksd.READERS.get(directory, "programs that are configured for it")
        yield Finding(OK, directory, f"{len(entries)} files; read by {readers}")
        for entry in entries:
            yield from _check_file(site, entry)
    ours = site.ours
    if not ours:
        yield Finding(
            FAILURE, "hooks.d", f"no hooks.d file in {' or '.join(site.hooks_dirs)} calls {NAME}", site.origin.again
        )
    yield from _check_duplicates(ours)


def _check_duplicates(ours: list[Entry]) -> Iterator[Finding]:
    """Our files in several directories. A namesake in a later one is an administrator's override."""
    for entry in ours:
        earlier = [it for it in ours[: ours.index(entry)] if it.name == entry.name]
        if earlier:
            yield from _check_override(entry, earlier[-1])
        elif os.path.dirname(entry.path) != os.path.dirname(ours[0].path):
            remedy = "remove all but one: programs that read both directories call the hook twice"
            yield Finding(
                FAILURE, "hooks.d", f"several files call the hook: {name_first([it.path for it in ours])}", remedy
            )
            return


def _check_override(entry: Entry, earlier: Entry) -> Iterator[Finding]:
    directory = os.path.dirname(entry.path)
    readers = {"podman": ("Podman", runtime_config.read_podman_hooks_dirs())} if PODMAN in entry.name else {}
    readers |= {"crio": ("CRI-O", runtime_config.read_crio_hooks_dirs())} if KUBERNETES in entry.name else {}
    yield Finding(OK, "hooks.d", f"{entry.path} overrides {earlier.path} for programs that read both")
    for program, (who, reads) in readers.items():
        if programs.find(program) and directory not in reads:
            found = f"{who} reads {', '.join(reads)}, not {directory}: it uses {earlier.path}"
            yield Finding(WARNING, "hooks.d", found, f"append {directory} to its hooks_dir")


def _check_file(site: Site, entry: Entry) -> Iterator[Finding]:
    if entry.problem is not None:
        remedy = "fix or remove it: Podman starts no container, CRI-O and the hook-injector do not start"
        yield Finding(
            FAILURE, entry.path, f"invalid: CRI-O, Podman and the NRI hook-injector reject it: {entry.problem}", remedy
        )
    elif entry.calls(PROGRAM):
        yield from _check_own_file(site, entry)
    elif entry.remark is not None:
        yield Finding(
            WARNING, entry.path, entry.remark, "belongs to another program; check that program's documentation"
        )
    elif entry.file and "poststop" in entry.file.stages and any(_runs_before(entry, it) for it in site.ours):
        remedy = "rename it to sort after ours: under runc, if its poststop fails, later ones do not run"
        yield Finding(WARNING, entry.path, "its poststop runs before ours", remedy)


def _check_own_file(site: Site, entry: Entry) -> Iterator[Finding]:
    if entry.file is None:
        return
    hook, again = entry.file.hook, site.origin.again
    options, complaints = parse(list(hook.args or [])[2:])
    problems = [f"--help: {it}" for it in complaints]
    if entry.remark is not None:
        problems.append(entry.remark)
    if not {"createRuntime", "poststop"} <= set(entry.file.stages):
        problems.append("a stage is missing: the hook needs createRuntime and poststop")
    if not hook.env:
        problems.append(
            "no env: createRuntime then inherits the environment of its caller, and Podman's poststop has none"
        )
    if hook.timeout is None or hook.timeout < _SHORTEST_TIMEOUT:
        problems.append(
            f"timeout {hook.timeout}: a short one makes containers fail, without one a hook can block forever"
        )
    if options.strict:
        problems.append("--strict: a container that cannot be monitored does not start")
    if (options.run_dir, options.resctrl_root) != (site.options.run_dir, site.options.resctrl_root):
        problems.append(
            f"its --run-dir or --resctrl-root differs from doctor's: use doctor --run-dir={options.run_dir}"
        )
    for problem in problems:
        yield Finding(WARNING, entry.path, problem, again)
    if not problems:
        yield Finding(OK, entry.path, f"calls {hook.path}")


def _runs_before(entry: Entry, other: Entry) -> bool:
    return entry.name.lower() < other.name.lower()
