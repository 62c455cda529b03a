# SPDX-License-Identifier: Apache-2.0
"""Finds what is wrong with an installation: the program, the hooks.d files, and the runtimes that read them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from hook import entry, reclaim, system
from hook.doctor import Facts, Site
from hook.models import Options
from hook.node import engines, files, hooksd, paths, programs
from hook.node.models import HookFile, HookProgram
from hook.report import format_count
from hook.show.terminal import name_first

_STAGES = {"createRuntime", "poststop"}

# --- The program


def find_stubs(site: Site) -> Iterator[Facts]:
    """Yield the programs that a removal has replaced by a stub."""
    yield from ({"path": path, "again": site.origin.again} for path in site.programs if paths.is_stub(path))


def find_writable(site: Site) -> Iterator[Facts]:
    """Yield the programs that another user than root can change."""
    for path in site.verdicts:
        found = system.try_call(os.stat, path)
        if found is not None and (found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            yield {"path": path}


def find_broken(site: Site) -> Iterator[Facts]:
    """Yield the programs that do not run, with the reason."""
    yield from ({"why": why, "again": site.origin.again} for why in site.verdicts.values() if why)


# --- hooks.d


def list_directories(site: Site) -> Iterator[Facts]:
    """Yield each hooks.d directory with its readers."""
    found = [os.path.dirname(file.path) for file in site.entries]
    for path in site.hooks_dirs:
        readers = hooksd.READERS.get(path, "programs that are configured for it")
        yield {"path": path, "number": format_count(found.count(path), "file"), "readers": readers}


def find_doubles(site: Site) -> Iterator[Facts]:
    """Yield a case if files of several directories call the hook, unless the later ones override their namesakes."""
    first: dict[str, hooksd.Entry] = {}
    for file in site.ours:
        first.setdefault(file.name, file)
    if len({os.path.dirname(file.path) for file in first.values()}) > 1:
        yield {"paths": name_first(file.path for file in site.ours)}


def compute_longest_wait(options: Options) -> float:
    """Return how long createRuntime may wait in all: for stdin, twice for a lock, for a reclaim and for limbo."""
    return entry.STDIN_PATIENCE + 2 * options.lock_timeout + reclaim.LONGEST_SEARCH + options.rmid_wait


def judge_own(site: Site) -> Iterator[Facts]:
    """Yield what is wrong with our hooks.d files. A file that the installation's owner writes again has its remedy."""
    for found in site.ours:
        if found.file is None or found.own is None:
            continue
        options, complaints = hooksd.parse_options(found.own)
        for why, change in _list_causes(found.file, found.own, options):
            again = site.origin.again if site.is_rewritten(found.path) else ""
            yield {"path": found.path, "why": why, "change": change, "remedy": again}
        for why in complaints:
            yield {"path": found.path, "why": f"its args: {why}", "change": "correct its args (help hook)"}
        if found.remark is not None:
            yield {"path": found.path, "why": found.remark, "change": "correct that, or remove the file"}


def _list_causes(file: HookFile, hook: HookProgram, options: Options) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a file, and what to change."""
    longest = compute_longest_wait(options)
    if hook.timeout is None:
        yield "no timeout: a stuck hook blocks forever", 'set "timeout": 60'
    elif hook.timeout < longest:
        why = f"timeout {hook.timeout} is too short: containers fail to start, for the hook may wait {longest:.1f} s"
        yield why, 'set "timeout": 60'
    if not {*file.stages} >= _STAGES:
        yield "a stage is missing: the hook needs createRuntime and poststop", 'set "stages" as in the shipped file'
    if not any(value for _, value in file.when or ()):
        yield "it has no condition: no container gets the hook", 'set "when" as in the shipped file'
    if not hook.env:
        why = "no env: createRuntime then inherits the environment of its caller, and Podman's poststop has none"
        yield why, 'add "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"] to its hook'
    if options.strict:
        yield "--strict: a container that cannot be monitored does not start", "remove that from its args"


# --- The runtimes, which start containers and read hooks.d


def list_runtimes() -> str:
    """Return the names of the installed runtimes."""
    return ", ".join(name for name in paths.RUNTIMES if programs.find_program(name))


def compare_directories(site: Site, *, reads_ours: bool | None) -> Iterator[Facts]:
    """Yield CRI-O and Podman, if they read the directory of our last file, or if not, or if that is unclear (None)."""
    for engine in (engines.CRIO, engines.PODMAN):
        ours = [os.path.dirname(file.path) for file in site.ours if engine.target in file.name]
        if not ours or not programs.find_program(engine.program):
            continue
        known = {"engine": engine.name, "wanted": ours[-1]}
        try:
            reads = engine.read_hooks_dirs()
        except files.Unreadable as error:
            if reads_ours is None:
                yield {**known, "why": error}
        else:
            if reads_ours is (ours[-1] in reads):
                yield {**known, "reads": ", ".join(reads) or "no hooks.d"}


def find_specs(site: Site, *, is_in_force: bool) -> Iterator[Facts]:
    """Yield a base_runtime_spec with the hook that containerd uses, or one that it ignores if it uses none."""
    named = site.containerd.specs if site.containerd is not None else []
    calls = {*site.programs, site.places.link}
    found = [spec for spec in named if calls & (system.try_call(hooksd.read_programs, spec.path) or set())]
    used = [spec for spec in found if spec.is_in_force]
    yield from ({"path": spec.path} for spec in (used or found)[:1] if spec.is_in_force is is_in_force)


def find_rejecting(site: Site) -> Iterator[Facts]:
    """Yield the files by which containerd rejects hooks of the hook-injector, unless a base_runtime_spec has ours."""
    if site.containerd is not None and not [*find_specs(site, is_in_force=True)]:
        yield from ({"path": path} for path in site.containerd.rejecting)
