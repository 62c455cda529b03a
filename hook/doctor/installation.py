# SPDX-License-Identifier: Apache-2.0
"""Checks of the installation: the program and its Python, hooks.d, the timer, syslog."""

from __future__ import annotations

import os
import stat

from hook.doctor.finding import FAILURE, OK, WARNING, Finding, name_first
from hook.install import install, node_bytecode
from hook.install.steps import Refused
from hook.node import config, door, hooksd, programs
from hook.node.door import Unreadable
from hook.node.hooksd import PROGRAM
from hook.node.place import INSTALL, KUBERNETES, NAME, PODMAN, PyzFile
from hook.node.programs import Interpreter
from hook.stages.context import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hook.doctor.site import Site
    from hook.node.hooksd import Entry

_SHORTEST_TIMEOUT = 10  # seconds: the hook itself waits up to 2.5, and the node may be overloaded


def check_programs(site: Site) -> Iterator[Finding]:
    yield Finding(OK, "installed by", site.origin.name)
    for path in site.programs:
        yield from _check_program(site, path)
    if site.origin.link and os.path.realpath(site.places.link) not in map(os.path.realpath, site.programs):
        remedy = f"{site.origin.again}; if installed elsewhere: doctor --prefix=DIR"
        yield Finding(WARNING, "program", f"{site.places.link} is not a link to the installed program", remedy)


def _check_program(site: Site, path: str) -> Iterator[Finding]:
    try:
        shipped = PyzFile(path)
    except Unreadable as error:
        problem = f"{path} is missing" if error.is_missing else f"cannot read {error}"
        yield Finding(FAILURE, "program", problem, site.origin.again)
        return
    except ValueError as error:
        yield Finding(FAILURE, "program", str(error), f"move it away, then: {site.origin.again}")
        return
    found = os.stat(path)
    if found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        remedy = f"chown root {path}; chmod 755 {path} (runtimes run it as root)"
        yield Finding(FAILURE, "program", f"{path} is not owned by root, or is writable by others", remedy)
    yield from _check_python(shipped)
    try:
        install.try_program(path)
    except Refused as error:
        yield Finding(FAILURE, "program", str(error), "fix this first: containers with the hook do not start")
    else:
        yield Finding(OK, "program", f"{path} runs")


def _check_python(shipped: PyzFile) -> Iterator[Finding]:
    found = programs.ask_interpreter(shipped.python)
    if not isinstance(found, Interpreter):
        yield Finding(FAILURE, "Python", found, "install that Python, or use install --python=PATH")
        return
    version = ".".join(map(str, found.version))
    if found.version < programs.OLDEST:
        yield Finding(
            FAILURE, "Python", f"{found.path} is version {version}, which is too old", "use install --python=PATH"
        )
    elif shipped.has_bytecode(found.magic):
        yield Finding(OK, "Python", f"{found.path}, {version}; the program contains bytecode for it")
    elif node_bytecode.is_current(os.path.realpath(shipped.path), shipped, found):
        yield Finding(OK, "Python", f"{found.path}, {version}; this node has compiled the program for it")
    else:
        problem = "the program has no bytecode for it, so each hook runs from sources, several times slower"
        yield Finding(WARNING, "Python", f"{found.path} is version {version}; {problem}", f"{shipped.path} bytecode")


def check_timer(site: Site) -> Iterator[Finding]:
    if not site.origin.timer:
        return  # the chart's pod runs reconcile: check_reconcile goes by its record
    timer = os.path.basename(site.places.timer)
    if not programs.has_systemd():
        remedy = f"run `{NAME} reconcile` every minute, for example from cron"
        yield Finding(WARNING, "timer", "systemd is not running", remedy)
        return
    if (problem := programs.run(["systemctl", "is-active", timer]).problem) is not None:
        yield Finding(WARNING, "timer", f"{timer} is not active ({problem})", f"systemctl enable --now {timer}")
    elif programs.run(["systemctl", "is-failed", "--quiet", os.path.basename(site.places.service)]).status == 0:
        service = os.path.basename(site.places.service)
        yield Finding(WARNING, "timer", f"{service} failed", f"journalctl -u {service}")
    else:
        yield Finding(OK, "timer", f"{timer} is active")
    yield from _check_timer_options(site)


def _check_timer_options(site: Site) -> Iterator[Finding]:
    """reconcile needs the same options as the hook. They are in its unit or in its file of options."""
    files = [path for path in (site.places.service, site.places.conf) if os.path.exists(path)]
    if not files:
        return
    last = [line for path in files for line in _read_timer_options(path)][-1:]
    options, _own = parse([word for line in last for word in line.split() if word != "--adopt"])
    for_all = "--containers=all"  # reconcile ignores --containers
    theirs = [parse([*(it.file.hook.args or [])[2:], for_all])[0] for it in site.ours if it.file is not None]
    if theirs and options not in theirs:
        remedy = f"`{NAME} install` writes both; with {site.origin.name}, set OPTIONS= in {site.places.conf}"
        if site.origin is INSTALL:
            remedy = f"run `{NAME} install`, which writes both"
        yield Finding(WARNING, "timer", f"the options in {files[-1]} differ from those of the hook", remedy)


def _read_timer_options(path: str) -> list[str]:
    """The value of each OPTIONS= line of a unit or of its file of options."""
    text = door.read_text(path, door.CONFIGURATION)
    lines = [line.removeprefix("Environment=") for line in text.splitlines()]
    return [line.partition("=")[2].strip() for line in lines if line.startswith("OPTIONS=")]


def check_syslog(_site: Site) -> Iterator[Finding]:
    if os.path.exists("/dev/log"):
        yield Finding(OK, "syslog", "available")
    else:
        yield Finding(
            WARNING, "syslog", "no /dev/log: failures are only in the run directory", "run journald or a syslogd"
        )


# --- hooks.d: our files, and other files that affect ours


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
    readers = {"podman": ("Podman", config.read_podman_hooks_dirs())} if PODMAN in entry.name else {}
    readers |= {"crio": ("CRI-O", config.read_crio_hooks_dirs())} if KUBERNETES in entry.name else {}
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
