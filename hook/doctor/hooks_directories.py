"""Checks of hooks.d: our files, and those of others that affect ours."""

from __future__ import annotations

import os

from hook.doctor.finding import FAILURE, OK, WARNING, Finding, name_first
from hook.host import hooksd, programs, runtime_config
from hook.host.machine import KUBERNETES, PODMAN
from hook.host.paths import PROGRAM
from hook.stages.options import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hook.doctor.site import Site
    from hook.host.hooksd import Entry

_SHORTEST_TIMEOUT = 10  # seconds: our own waits take 2.5, and a node may be starved


def check_hooks_directories(site: Site) -> Iterator[Finding]:
    for directory in site.hooks_dirs:
        entries = hooksd.read_directory(directory)
        readers = hooksd.READERS.get(directory, "whoever is told to")
        yield Finding(OK, directory, f"{len(entries)} files; read by {readers}")
        for entry in entries:
            yield from _check_file(site, entry)
    ours = site.ours
    if not ours:
        yield Finding(
            FAILURE, "hooks.d", f"none of {', '.join(site.hooks_dirs)} has the hook called", site.origin.again
        )
    yield from _check_duplicates(ours)


def _check_duplicates(ours: list[Entry]) -> Iterator[Finding]:
    """Ours in several directories: a namesake in a later one is how an administrator gives the hook other options."""
    for entry in ours:
        earlier = [it for it in ours[: ours.index(entry)] if it.name == entry.name]
        if earlier:
            yield from _check_override(entry, earlier[-1])
        elif os.path.dirname(entry.path) != os.path.dirname(ours[0].path):
            remedy = "remove all but one: readers of both directories call the hook twice"
            yield Finding(FAILURE, "hooks.d", f"it is called from {name_first([it.path for it in ours])}", remedy)
            return


def _check_override(entry: Entry, earlier: Entry) -> Iterator[Finding]:
    directory = os.path.dirname(entry.path)
    readers = {"podman": ("Podman", runtime_config.of_podman())} if PODMAN in entry.name else {}
    readers |= {"crio": ("CRI-O", runtime_config.of_crio())} if KUBERNETES in entry.name else {}
    yield Finding(OK, "hooks.d", f"{entry.path} takes the place of {earlier.path}, for who reads both")
    for program, (who, reads) in readers.items():
        if programs.find(program) and directory not in reads:
            found = f"{who} reads {', '.join(reads)}, not {directory}: it goes by {earlier.path}"
            yield Finding(WARNING, "hooks.d", found, f"name {directory} in its hooks_dir, too, as the last one")


def _check_file(site: Site, entry: Entry) -> Iterator[Finding]:
    if entry.problem is not None:
        remedy = "mend or remove it: Podman starts no container, CRI-O and the hook-injector do not start"
        yield Finding(FAILURE, entry.path, f"readers refuse it: {entry.problem}", remedy)
    elif entry.calls(PROGRAM):
        yield from _check_own_file(site, entry)
    elif entry.remark is not None:
        yield Finding(WARNING, entry.path, entry.remark, "it is another program's: see there")
    elif entry.file and "poststop" in entry.file.stages and any(_runs_before(entry, it) for it in site.ours):
        remedy = "under runc a poststop that fails keeps those after it from running: let its name sort after ours"
        yield Finding(WARNING, entry.path, "its poststop comes before ours", remedy)


def _check_own_file(site: Site, entry: Entry) -> Iterator[Finding]:
    if entry.file is None:
        return
    hook, again = entry.file.hook, site.origin.again
    options, complaints = parse(list(hook.args or [])[2:])
    problems = [f"--help: {it}" for it in complaints]
    if entry.remark is not None:
        problems.append(entry.remark)
    if not {"createRuntime", "poststop"} <= set(entry.file.stages):
        problems.append("it needs both stages, createRuntime and poststop")
    if not hook.env:
        problems.append("no env: createRuntime has its caller's environment then, and Podman's poststop none")
    if hook.timeout is None or hook.timeout < _SHORTEST_TIMEOUT:
        problems.append(f"timeout {hook.timeout}: too short kills containers, none at all may hold one for ever")
    if options.strict:
        problems.append("--strict: a container that cannot be monitored does not start")
    if (options.run_dir, options.resctrl_root) != (site.options.run_dir, site.options.resctrl_root):
        problems.append(f"other directories than here: doctor --run-dir={options.run_dir}")
    for problem in problems:
        yield Finding(WARNING, entry.path, problem, again)
    if not problems:
        yield Finding(OK, entry.path, f"calls {hook.path}")


def _runs_before(entry: Entry, other: Entry) -> bool:
    return entry.name.lower() < other.name.lower()
