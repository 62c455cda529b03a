# SPDX-License-Identifier: Apache-2.0
"""Finds what is wrong with an installation: the program, the hooks.d files, and the runtimes that read them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from hook import entry, reclaim, system
from hook.doctor import FAILURE, OK, WARNING, Finding, Site
from hook.install import install, steps
from hook.install.program import Program
from hook.models import Options
from hook.node import engines, files, hooksd, programs
from hook.node.models import HookFile, HookProgram
from hook.node.paths import TARGETS, Places, is_stub
from hook.report import format_count
from hook.show import name_first

_STAGES = {"createRuntime", "poststop"}
_CONTAINERDS = ("containerd", "k3s", "rke2")

# --- The program


def check_programs(site: Site) -> Iterator[Finding]:
    """Yield the owner of the installation, and for each program that it runs, or what is wrong with it."""
    yield Finding(OK, "installed by", site.origin.name)
    again = site.origin.again
    for path in site.programs:
        if is_stub(path):
            why = f"{path} is what a removal leaves, and does nothing: no container is monitored"
            yield Finding(FAILURE, "program", why, again)
            continue
        found = system.try_call(os.stat, path)
        if found is not None and (found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            why = f"{path} is not owned by root, or is writable by others"
            yield Finding(FAILURE, "program", why, f"chown root {path}; chmod 755 {path} (runtimes run it as root)")
        try:
            if not os.path.exists(path):
                raise steps.Refused(f"{path} is missing")
            install.try_program(path)
        except steps.Refused as error:
            remedy = f"fix this first, or: {again}; containers with the hook do not start"
            yield Finding(FAILURE, "program", str(error), remedy)
        else:
            yield Finding(OK, "program", f"{path} runs")


def check_namesakes(site: Site) -> Iterator[Finding]:
    """Yield what has a name of ours and is not: programs that hooks.d calls or a shell finds, and hooks.d files."""
    of_files = [(file.hook.path, entry.path) for entry in site.entries if (file := entry.file) is not None]
    called = {program: path for program, path in of_files if hooksd.NAME in program + path}
    paths = [*site.programs, *called, *(f"{directory}/{hooksd.NAME}" for directory in programs.PATH.split(":"))]
    for path in {os.path.realpath(path): path for path in paths if os.path.exists(path) and not is_stub(path)}.values():
        try:
            Program(path)
        except (files.Unreadable, ValueError) as error:
            where = f", which {called[path]} calls" if path in called else ""
            remedy = "find out whose it is; rename it, or what calls it: containers are not monitored by that"
            yield Finding(WARNING, "program", f"not ours{where}: {error}", remedy)


# --- hooks.d


def check_hooks_dirs(site: Site) -> Iterator[Finding]:
    """Yield each hooks.d directory with its readers, the files that these reject, and whether one calls the hook once.

    A file in a later directory overrides its namesake.
    """
    found = [os.path.dirname(file.path) for file in site.entries]
    for path in site.hooks_dirs:
        readers = hooksd.READERS.get(path, "programs that are configured for it")
        yield Finding(OK, path, f"{format_count(found.count(path), 'file')}; read by {readers}")
    for file in site.entries:
        if file.problem is not None:
            why = f"invalid: CRI-O, Podman and the NRI hook-injector reject it: {file.problem}"
            remedy = "fix or remove it: Podman starts no container, CRI-O and the hook-injector do not start"
            yield Finding(FAILURE, file.path, why, remedy)
    if not site.ours:
        why = f"no hooks.d file in {' or '.join(site.hooks_dirs)} calls resctrl-mon-hook"
        yield Finding(FAILURE, "hooks.d", why, site.origin.again)
    first = {file.name: os.path.dirname(file.path) for file, _ in reversed(site.ours)}
    if len({*first.values()}) > 1:
        why = f"several files call the hook: {name_first(file.path for file, _ in site.ours)}"
        remedy = "remove all but one: programs that read both directories call the hook twice"
        yield Finding(FAILURE, "hooks.d", why, remedy)


def compute_longest_wait(options: Options) -> float:
    """Return how long createRuntime may wait in all: for stdin, twice for a lock, for a reclaim and for limbo."""
    return entry.STDIN_PATIENCE + 2 * options.lock_timeout + reclaim.LONGEST_SEARCH + options.rmid_wait


def check_own_files(site: Site) -> Iterator[Finding]:
    """Yield what is wrong with our hooks.d files. A file that the installation's owner writes again has its remedy."""
    for found, hook in site.ours:
        options, complaints = hooksd.parse_options(hook)
        causes = [*_list_causes(found.file, hook, options)] if found.file is not None else []
        again = site.origin.again if causes and _is_rewritten(site, found) else ""
        for why, change in causes:
            yield Finding(WARNING, found.path, why, again or f"edit {found.path}: {change}")
        for why in complaints:
            yield Finding(WARNING, found.path, f"its args: {why}", f"edit {found.path}: correct its args (help hook)")
        if found.remark is not None:
            yield Finding(WARNING, found.path, found.remark, f"edit {found.path}: correct that, or remove the file")


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


def _is_rewritten(site: Site, file: hooksd.Entry) -> bool:
    """Whether the owner of the installation writes a hooks.d file again.

    The owner does not write a copy: a file with another name, or that overrides its namesake.
    """
    named = next(entry.path for entry, _ in site.ours if entry.name == file.name)
    is_own = file.path in map(Places(hooks_dir=os.path.dirname(file.path)).json, TARGETS)
    return is_own and named == file.path and file.path.startswith(site.origin.writes)


# --- The runtimes, which start containers and read hooks.d


def check_engines(site: Site) -> Iterator[Finding]:
    """Yield for CRI-O and Podman whether they read the directory of our last file."""
    for engine in (engines.CRIO, engines.PODMAN):
        ours = [os.path.dirname(file.path) for file, _ in site.ours if engine.target in file.name]
        if not ours or not programs.find_program(engine.program):
            continue
        try:
            reads = engine.read_hooks_dirs()
        except files.Unreadable as error:
            remedy = f"see for yourself that its hooks_dir names {ours[-1]}"
            yield Finding(WARNING, engine.name, f"unclear which hooks directories it reads: {error}", remedy)
            continue
        shown = f"reads {', '.join(reads) or 'no hooks.d'}"
        if ours[-1] in reads:
            yield Finding(OK, engine.name, shown)
        else:
            shown = f"{shown}, and not {ours[-1]}, where our file is"
            yield Finding(FAILURE, engine.name, shown, f"append {ours[-1]} to its hooks_dir")


def check_containerd(site: Site) -> Iterator[Finding]:
    """Yield what containerd does with the hook, if it starts the containers of Kubernetes, and not CRI-O.

    A base_runtime_spec with the hook counts before the hook-injector, whose hooks containerd may reject.
    """
    name = "containerd"
    if programs.find_program("crio") or not any(map(programs.find_program, _CONTAINERDS)):
        return
    settings, calls = engines.read_containerd(), {*site.programs, site.places.link}
    named = [spec for spec in settings.specs if calls & (system.try_call(hooksd.read_programs, spec.path) or set())]
    used = [spec for spec in named if spec.is_in_force]
    for spec in (used or named)[:1]:
        if spec.is_in_force:
            yield Finding(OK, name, f"{spec.path} names the hook")
            continue
        why = f"{spec.path} names the hook, but its base_runtime_spec is in a table that containerd ignores"
        remedy = "with version = 3, use the table plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes"
        yield Finding(FAILURE, name, why, remedy)
    for path in [] if used else settings.rejecting:
        why = f"{path}: NRI's default_validator has reject_oci_hook_adjustment = true"
        remedy = "set it to false, or remove the hook: containers that get the hook from the hook-injector do not start"
        yield Finding(FAILURE, name, why, remedy)
    for line in settings.unclear:
        yield Finding(WARNING, name, line, "fix this file: it may name the hook")
