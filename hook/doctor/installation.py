# SPDX-License-Identifier: Apache-2.0
"""Checks of the installation: the program and its Python, hooks.d, the runtimes that read it, the timer, syslog."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from hook import system
from hook.doctor import Finding, Site, failure, ok, warning
from hook.explain import format_count, name_first
from hook.identity import OPT
from hook.install import bytecode, install, steps
from hook.install.bytecode import PyzFile
from hook.node import engines, files, hooksd, paths, programs
from hook.node.hooksd import Entry, find_own_hooks, parse_options, read_hooks
from hook.node.models import HookFile
from hook.node.paths import INSTALL, KUBERNETES, NAME, PODMAN

_NO_ENV = "no env: createRuntime then inherits the environment of its caller, and Podman's poststop has none"
_NO_CONDITION = "it has no condition: no container gets the hook"
_BAD_TIMEOUT = "a short one makes containers fail, without one a hook can block forever"
_STAGES = ("createRuntime", "poststop")
_CONTAINERDS = frozenset(("containerd", "k3s", "rke2"))
_SHORTEST_TIMEOUT = 10  # seconds: the hook itself waits up to 2.5, and the node may be overloaded


def check_programs(site: Site) -> Iterator[Finding]:
    yield ok("installed by", site.origin.name)
    for path in site.programs:
        yield from _check_program(site, path)
    if site.origin.writes != ("/",) and os.path.realpath(site.places.link) not in map(os.path.realpath, site.programs):
        remedy = f"{site.origin.again}; if installed elsewhere: doctor --prefix=DIR"
        if site.origin is INSTALL and not os.path.lexists(site.places.link) and site.places.program in site.programs:
            remedy = f"ln -s {site.places.link_target} {site.places.link}"
        yield warning("program", f"{site.places.link} is not a link to the installed program", remedy)


def _check_program(site: Site, path: str) -> Iterator[Finding]:
    if paths.is_stub(path):
        problem = f"{path} is what a removal leaves, and does nothing: no container is monitored"
        yield failure("program", problem, site.origin.again)
        return
    try:
        shipped = PyzFile(path)
    except files.Unreadable as error:
        problem = f"{path} is missing" if error.is_missing else f"cannot read {error}"
        yield failure("program", problem, site.origin.again)
        return
    except ValueError as error:
        yield failure("program", str(error), f"move it away, then: {site.origin.again}")
        return
    found = os.stat(path)
    if found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        remedy = f"chown root {path}; chmod 755 {path} (runtimes run it as root)"
        yield failure("program", f"{path} is not owned by root, or is writable by others", remedy)
    yield _check_python(site, shipped)
    try:
        install.try_program(path)
        yield ok("program", f"{path} runs")
    except steps.Refused as error:
        yield failure("program", str(error), "fix this first: containers with the hook do not start")


def _check_python(site: Site, shipped: PyzFile) -> Finding:
    python = programs.ask_interpreter(shipped.python)
    if isinstance(python, str):
        another = f", or use {NAME}.pyz install --python=PATH" if site.origin is INSTALL else ""
        return failure("Python", python, f"install that Python{another}")
    name = "{}, {}.{}".format(python.path, *python.version)
    if shipped.has_bytecode(python.magic):
        return ok("Python", f"{name}; the program contains bytecode for it")
    if bytecode.has_bytecode(os.path.realpath(shipped.path), shipped, python):
        return ok("Python", f"{name}; this node has compiled the program for it")
    problem = f"{name}: the program has no bytecode for it, so each hook runs from sources, several times slower"
    return warning("Python", problem, f"{shipped.path} bytecode")


def check_timer(site: Site) -> Iterator[Finding]:
    if site.origin.name == "the Helm chart":
        return  # the chart's pod runs reconcile, and check_reconcile reads its record
    timer, service = map(os.path.basename, (site.places.timer, site.places.service))
    in_force = _find_unit(site.places.timer)
    if not programs.has_systemd():
        yield warning("timer", "systemd is not running", f"run `{NAME} reconcile` every minute, for example from cron")
    elif (problem := programs.run_program(["systemctl", "is-active", timer]).problem) is not None:
        remedy = f"systemctl enable --now {timer}" if os.path.exists(in_force) else site.origin.again
        if os.path.realpath(in_force) == os.devnull:
            remedy = f"systemctl unmask {timer}; {remedy}"
        yield warning("timer", f"{timer} is not active ({problem})", remedy)
    elif programs.run_program(["systemctl", "is-failed", "--quiet", service]).status == 0:
        yield warning("timer", f"{service} failed", f"journalctl -u {service}")
    else:
        yield ok("timer", f"{timer} is active")
    if os.path.lexists(site.places.conf):
        remedy = "put its options into the hooks.d file (`install` does), then remove it"
        yield warning("timer", f"{site.places.conf} is not read any more", remedy)


def _find_unit(path: str) -> str:
    """The file of a unit that systemd uses: the administrator's copy, if there is one."""
    copy = f"/etc/systemd/system/{os.path.basename(path)}"
    return copy if os.path.lexists(copy) else path


def check_syslog(_site: Site) -> Iterator[Finding]:
    if os.path.exists("/dev/log"):
        yield ok("syslog", "available")
    else:
        yield warning("syslog", "no /dev/log: failures are only in the run directory", "run journald or a syslogd")


# --- hooks.d: our files, and other files that affect ours


def check_hooks_directories(site: Site) -> Iterator[Finding]:
    for directory in site.hooks_dirs:
        entries = hooksd.read_directory(directory)
        readers = hooksd.READERS.get(directory, "programs that are configured for it")
        yield ok(directory, f"{format_count(len(entries), 'file')}; read by {readers}")
        for entry in entries:
            yield from _check_file(site, entry)
    if not site.ours:
        yield failure("hooks.d", f"no hooks.d file in {' or '.join(site.hooks_dirs)} calls {NAME}", site.origin.again)
    earlier: dict[str, Entry] = {}
    for entry in site.ours:  # a namesake in a later directory is an administrator's override
        if entry.name in earlier:
            yield from _check_override(entry, earlier[entry.name])
        elif os.path.dirname(entry.path) != os.path.dirname(site.ours[0].path):
            found = f"several files call the hook: {name_first(it.path for it in site.ours)}"
            remedy = "remove all but one: programs that read both directories call the hook twice"
            yield failure("hooks.d", found, remedy)
            return
        earlier[entry.name] = entry


def _check_override(entry: Entry, earlier: Entry) -> Iterator[Finding]:
    yield ok("hooks.d", f"{entry.path} overrides {earlier.path} for programs that read both")
    directory = os.path.dirname(entry.path)
    for it in (engines.CRIO, engines.PODMAN):
        reads = system.try_call(it.read_hooks_dirs) or [directory]  # check_runtimes reports what is unclear
        if it.target in entry.name and programs.find_program(it.program) and directory not in reads:
            found = f"{it.name} reads {', '.join(reads)}, not {directory}: it uses {earlier.path}"
            yield warning("hooks.d", found, f"append {directory} to its hooks_dir")


def _check_file(site: Site, entry: Entry) -> Iterator[Finding]:
    if entry.problem is not None:
        remedy = "fix or remove it: Podman starts no container, CRI-O and the hook-injector do not start"
        readers = "CRI-O, Podman and the NRI hook-injector"
        yield failure(entry.path, f"invalid: {readers} reject it: {entry.problem}", remedy)
    elif entry.file is not None and entry.own is not None:
        yield from _check_own_file(site, entry, entry.file)
    elif entry.remark is not None:
        yield warning(entry.path, entry.remark, "belongs to another program; check that program's documentation")
    elif (
        entry.file
        and "poststop" in entry.file.stages
        and any(entry.name.lower() < own.name.lower() for own in site.ours)
    ):
        remedy = "rename it to sort after ours: under runc, if its poststop fails, later ones do not run"
        yield warning(entry.path, "its poststop runs before ours", remedy)


def _check_own_file(site: Site, entry: Entry, file: HookFile) -> Iterator[Finding]:
    hook = file.hook
    options, complaints = parse_options(hook)
    is_elsewhere = (options.run_dir, options.resctrl_root) != (site.options.run_dir, site.options.resctrl_root)
    problems = [(f"its args: {it}", f"correct its args: {NAME} help hook") for it in complaints]
    causes = [
        (entry.remark, entry.remark or "", "correct that, or remove the file"),
        (
            {*_STAGES} - {*file.stages},
            "a stage is missing: the hook needs createRuntime and poststop",
            'set "stages": ["createRuntime", "poststop"]',
        ),
        (not any(value for _name, value in file.when or ()), _NO_CONDITION, 'set "when" as in the shipped file'),
        (not hook.env, _NO_ENV, 'add "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"] to its hook'),
        ((hook.timeout or 0) < _SHORTEST_TIMEOUT, f"timeout {hook.timeout}: {_BAD_TIMEOUT}", 'set "timeout": 60'),
        (options.strict, "--strict: a container that cannot be monitored does not start", "remove that from its args"),
    ]
    problems += [(problem, change) for is_there, problem, change in causes if is_there]
    for problem, change in problems:
        yield warning(entry.path, problem, site.name_remedy(entry.path, change))
    if is_elsewhere:
        remedy = f"use doctor --run-dir={options.run_dir} --resctrl-root={options.resctrl_root}"
        yield warning(entry.path, "its --run-dir or --resctrl-root differs from doctor's", remedy)
    elif not problems:
        yield ok(entry.path, f"calls {hook.path}")


# --- The runtimes, which start containers and read hooks.d


def check_runtimes(site: Site) -> Iterator[Finding]:
    found = [name for name in paths.RUNTIMES if programs.find_program(name)]
    if not found:
        remedy = "install CRI-O, Podman or containerd: Docker does not support OCI hooks"
        yield warning("runtimes", f"found none of {', '.join(paths.RUNTIMES)}", remedy)
        return
    yield ok("runtimes", ", ".join(found))
    if "crio" in found:
        yield _check_hooks_dirs(site, engines.CRIO)
        if (path := system.try_call(engines.read_rdt_config_file)) is not None:
            found_in = f"rdt_config_file is {path}: each start of CRI-O removes empty groups"
            remedy = "keep the timer running: reconcile makes the removed groups again"
            yield warning("CRI-O", f"{found_in}, and ctrl_groups missing in that file", remedy)
    if "podman" in found and any(PODMAN in entry.name for entry in site.ours):
        yield _check_hooks_dirs(site, engines.PODMAN)
    if "crio" not in found and not _CONTAINERDS.isdisjoint(found):
        yield from _check_containerd(site)


def _check_hooks_dirs(site: Site, engine: engines.Engine) -> Finding:
    directories = {os.path.dirname(entry.path) for entry in site.ours} or {site.places.hooks_dir}
    try:
        reads = engine.read_hooks_dirs()
    except files.Unreadable as error:
        remedy = f"see for yourself that its hooks_dir names {min(directories)}"
        return warning(engine.name, f"unclear which hooks directories it reads: {error}", remedy)
    if not site.ours or directories & {*reads}:
        return ok(engine.name, f"reads {', '.join(reads)}")
    found = f"reads {', '.join(reads) or 'no hooks.d'}, which has none of our files"
    return failure(engine.name, found, f"append {min(directories)} to its hooks_dir")


def _check_containerd(site: Site) -> Iterator[Finding]:
    """containerd does not read hooks.d: the NRI hook-injector does, or a base_runtime_spec names the hook."""
    found, injectors = site.containerd, programs.find_injectors()
    specs = [it for it in found.specs if site.is_called_by(it.path, it.files)]
    in_force = [it.path for it in specs if it.in_force]
    # Any pod can have processes with an injector's name, so they change no other finding.
    for pid in programs.find_injector_claims()[:1]:
        claim = f"unproven: process {pid} in a pod has the name of a hook-injector, as any tenant's process can"
        yield ok("containerd", f"{claim}; `list` counts the containers that never got the hook")
    # By these settings containerd rejects the injector's hooks.
    for path in found.rejecting if injectors or not in_force else ():
        text = f"{path}: NRI's default_validator has reject_oci_hook_adjustment = true"
        remedy = "containers that get the hook from the hook-injector do not start"
        yield failure("containerd", text, f"set it to false, or remove the hook: {remedy}")
    for line in found.unclear:
        remedy = "fix this file: doctor cannot see whether it names the hook"
        yield warning("containerd", line, remedy)
    if injectors and in_force:
        remedy = "remove one of the two: each hook runs twice, which is harmless but takes time"
        yield warning("containerd", f"the NRI hook-injector runs, and {in_force[0]} names the hook", remedy)
    elif injectors or in_force:
        yield ok("containerd", "the NRI hook-injector runs" if injectors else f"{in_force[0]} names the hook")
    elif specs:
        remedy = "with version = 3, use the table plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes"
        found_in = f"{specs[0].path} names the hook, but its base_runtime_spec is in a table that containerd ignores"
        yield failure("containerd", found_in, remedy)
    elif any(KUBERNETES in entry.name for entry in site.ours):
        found_none = "no NRI hook-injector runs on the host, and no base_runtime_spec names the hook"
        remedy = f"run the hook-injector of containerd/nri, or use {NAME} base-runtime-spec"
        yield warning("containerd", found_none, f"{remedy}; ask Kubernetes for one in a pod")


def check_pod_annotations(site: Site) -> Iterator[Finding]:
    """Report options that need pod annotations which containerd does not pass on."""
    if programs.find_program("crio") or not any(map(programs.find_program, _CONTAINERDS)):
        return
    calls = [it.own for it in site.ours if it.own is not None and KUBERNETES in it.name]
    configuration = site.containerd
    named = [it for it in configuration.specs if site.is_called_by(it.path, it.files)]
    calls += [it for spec in named for it in find_own_hooks(read_hooks(spec.path, spec.files))]
    needed = set()
    for options, _complaints in map(parse_options, calls):
        needed |= {key for key in options.annotation if not key.startswith("io.kubernetes.cri.")}
        needed |= {OPT, f"{OPT}/CONTAINER"} if options.monitor != "all" else set()
    lacking = sorted(key for key in needed if not configuration.passes_on(key))
    if lacking:
        found = f"does not pass on {', '.join(lacking)}: the hook's --monitor and --annotation never see them"
        remedy = f'set pod_annotations = ["{OPT}", "{OPT}/*"] in the runtime\'s table (config.toml)'
        yield warning("containerd", found, f"{remedy}, and restart containerd")
