"""Is all well on this node, and if not, what is to be done? Each check finds something out, and changes nothing.

What is looked for are the preconditions of the hook, and what is known to go wrong on real nodes: in hooks.d, with the
runtimes, with other tools that use resctrl.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from functools import cached_property

from hook.base import cgroups, names, procfs, system
from hook.base.errors import HookError
from hook.base.resctrl import Resctrl
from hook.base.text import printable
from hook.doctor import self_test
from hook.host import cdi, containerd, hooksd, injector, machine, oci_runtimes, runtime_config, would_inject
from hook.host.machine import KUBERNETES, PODMAN, Interpreter
from hook.host.paths import NAME, PROGRAM, Places, prefix_of
from hook.host.pyz_file import Shipped
from hook.install import install, node_bytecode
from hook.install import owner as origins
from hook.install.file_steps import Refused
from hook.install.uninstall import programs_in
from hook.observe import snapshot
from hook.stages.context import parse
from hook.stages.identity import OPT
from hook.state.records import Records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from hook.base.models import Options
    from hook.host.containerd import Found
    from hook.host.hooksd import Entry
    from hook.host.would_inject import Told, Verdict
    from hook.install.owner import Origin

OK, WARNING, FAILURE = "ok", "warning", "FAIL"
_MOST_NAMED = 5
_SHORTEST_TIMEOUT = 10  # seconds: our own waits take 2.5, and a node may be starved
# Programs that make or remove mon_groups as well, by the names of their processes, and what follows from that.
_PEERS = {
    "nri-resctrl-mon": "it makes groups for the same pods, and whoever comes last has them: stop one of the two",
    "resctrl-mon": "it makes groups for the same pods, and whoever comes last has them: stop one of the two",
    "kepler": "let it read ours (passive mode, base-path={run_dir}): in active mode it makes groups for the same pods",
    "pqos": "its reset (-R) removes every group on the machine; reconcile makes ours anew",
    "cadvisor": "with resctrl enabled it makes groups of its own, which take RMIDs",
}
_RECONCILES = {"/app/node.py", "reconcile"}  # of the chart's image
_CONTAINERDS = frozenset(("containerd", "k3s", "rke2"))


@dataclass(frozen=True)
class Finding:
    """What a check found. `subject`: what it was about; `remedy`: what to do unless all is well."""

    level: str
    subject: str
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Site:
    """What is to be looked at. `hooks_dirs`: the directories of hooks.d, in the order of their weight."""

    places: Places
    options: Options
    hooks_dirs: tuple[str, ...] = tuple(hooksd.READERS)

    @cached_property
    def ours(self) -> list[Entry]:
        """The files that have the hook called. Raises OSError."""
        return [
            entry for directory in self.hooks_dirs for entry in hooksd.read_directory(directory) if entry.calls(PROGRAM)
        ]

    @cached_property
    def origin(self) -> Origin:
        """Who owns the installation that is called; where none is, the one that would be. Raises OSError."""
        called = [(it.path, prefix_of(it.file.hook.path)) for it in self.ours if it.file is not None]
        places = [Places(prefix, os.path.dirname(path)) for path, prefix in called if prefix is not None]
        try:
            return origins.of(next(iter(places), self.places))
        except Refused:  # the manager of packages does not answer
            return origins.INSTALL

    @cached_property
    def states(self) -> tuple[list[dict[str, Any]], list[str]]:
        """What the OCI runtimes tell of running containers, and a line on each thing that they do not."""
        return oci_runtimes.states()

    @property
    def programs(self) -> list[str]:
        """The programs that are called; where none is, the one that would be. Raises OSError."""
        called = {entry.file.hook.path for entry in self.ours if entry.file is not None}
        return sorted(called) or [self.places.program]


def examine(site: Site) -> Iterator[Finding]:
    """All checks. One that cannot be made is a failure of its own."""
    for name, check in CHECKS.items():
        try:
            yield from check(site)
        except (HookError, OSError) as error:
            found, _, hint = str(error).partition("; hint: ")
            yield Finding(FAILURE, name, f"cannot be looked at: {found}", hint or "run it as root")


def told(findings: Iterable[Finding]) -> list[str]:
    """A line on each finding, and one on its remedy."""
    lines = []
    for it in findings:
        lines.append(f"{it.level:<8} {it.subject}: {it.found}")
        lines += [f"{'':<8}   {it.remedy}"] if it.remedy and it.level != OK else []
    return lines


def objects(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {"level": it.level.lower(), "subject": it.subject, "found": it.found, "remedy": it.remedy or None}
        for it in findings
    ]


# --- The kernel


def _root(_site: Site) -> Iterator[Finding]:
    if procfs.in_user_namespace():
        yield Finding(FAILURE, "root", "of a user namespace only (rootless)", "nothing can be monitored from in here")
    elif system.user_id() != 0:
        yield Finding(FAILURE, "root", "this is somebody else", "run it as root: most of the rest cannot be seen")
    else:
        yield Finding(OK, "root", "yes")


def _resctrl(site: Site) -> Iterator[Finding]:
    root = site.options.resctrl_root
    kernel = Resctrl(root)
    if not kernel.exists():
        found = f"no {root}: this kernel or this CPU has no resctrl"
        yield Finding(FAILURE, "resctrl", found, "Intel RDT or AMD QoS, and CONFIG_X86_CPU_RESCTRL; not in most VMs")
    elif not kernel.is_mounted():
        yield _unmounted(root)
    else:
        yield Finding(OK, "resctrl", f"mounted on {root}")
        if os.statvfs(root).f_flag & os.ST_RDONLY:
            yield Finding(FAILURE, "resctrl", "it is mounted read-only", f"mount -o remount,rw {root}")
        yield from _monitoring(root)
        yield from _limbo(root)


def _unmounted(root: str) -> Finding:
    if system.is_directory(root + "/info"):
        remedy = "a CPU that monitors (CMT, MBM, AET); look for rdt= and clearcpuid= on the kernel's command line"
        return Finding(FAILURE, "resctrl", f"{root} is mounted, and cannot monitor: no mon_groups", remedy)
    if procfs.resctrl_groups(system.process_id()) is not None:
        remedy = "end whatever keeps it (lsns -t mnt; a container that has it mounted), then mount it"
        return Finding(FAILURE, "resctrl", "not mounted here, but in another mount namespace, which keeps it", remedy)
    remedy = f"mount -t resctrl resctrl {root}; for each boot: `resctrl {root} resctrl defaults 0 0` in /etc/fstab"
    return Finding(FAILURE, "resctrl", f"not mounted on {root}", remedy)


def _monitoring(root: str) -> Iterator[Finding]:
    kinds = [name for name in system.list_directory(root + "/info") if name.endswith("_MON")]
    if "PERF_PKG_MON" in kinds:
        yield Finding(OK, "counters", ", ".join(kinds))
    else:
        remedy = (
            "energy needs a CPU with AET, and a kernel that reads it; cache and memory traffic are counted all the same"
        )
        yield Finding(WARNING, "counters", f"{', '.join(kinds) or 'none'}; no energy (PERF_PKG_MON)", remedy)


def _limbo(root: str) -> Iterator[Finding]:
    path = f"{root}/info/L3_MON/max_threshold_occupancy"
    try:
        threshold = int(system.read_file(path, 64))
    except (OSError, ValueError):
        return
    if threshold == 0:
        yield Finding(WARNING, "limbo", f"{path} is 0: an RMID that was used never comes back", f"echo 65536 > {path}")


def _rmids(site: Site) -> Iterator[Finding]:
    seen = snapshot.look(site.options)
    if seen.rmids is None:
        return
    limit, ours, others = seen.rmids.limit, seen.rmids.ours, seen.rmids.others
    found = f"{ours + others} in use of {limit or '?'} ({ours} ours, {others} of others)"
    free = None if limit is None else limit - ours - others
    remedy = "fewer pods or ctrl_groups on this node, or end what others hold; reconcile takes back those of the dead"
    if free is not None and free <= 0:
        yield Finding(FAILURE, "RMIDs", f"{found}: none is left", remedy)
    elif free is not None and free * 10 < (limit or 0):
        yield Finding(WARNING, "RMIDs", f"{found}: few are left", remedy)
    else:
        yield Finding(OK, "RMIDs", found)
    if seen.orphans:
        yield Finding(WARNING, "RMIDs", f"groups that nobody is behind: {_named(seen.orphans)}", f"{NAME} reconcile")
    yield from _groups_of_others(site)


def _groups_of_others(site: Site) -> Iterator[Finding]:
    """Who holds RMIDs besides us, as far as names tell."""
    found: dict[str, list[str]] = {}
    for path in Resctrl(site.options.resctrl_root).mon_groups():
        name = os.path.basename(path)
        if not name.startswith(site.options.group_prefix):
            found.setdefault(_maker_of(name), []).append(path)
    for maker, paths in found.items():
        remedy = "each takes an RMID; what nobody needs any more: rmdir"
        yield Finding(WARNING, "RMIDs", f"{len(paths)} groups {maker}: {_named(paths)}", remedy)


def _maker_of(name: str) -> str:
    try:
        names.pod_uid(name)
    except ValueError:
        is_container = len(name) == 64 and not name.strip("0123456789abcdef")
        return "of containers (linux.intelRdt.enableMonitoring of runc or crun?)" if is_container else "of others"
    return "of pods (nri-resctrl-mon, or Kepler in active mode?)"


def _processes(site: Site) -> Iterator[Finding]:
    """What is looked at of processes."""
    if not machine.shows_processes():
        yield Finding(FAILURE, "processes", "/proc does not show them", "mount it, without hidepid= for root")
    elif not procfs.in_host_pid_namespace():
        yield Finding(FAILURE, "processes", procfs.NOT_HOST_PIDS, procfs.PID_HINT)
    elif procfs.resctrl_groups(system.process_id()) is None and Resctrl(site.options.resctrl_root).is_mounted():
        remedy = "CONFIG_PROC_CPU_RESCTRL; without it the class of a container is taken from its config.json"
        yield Finding(WARNING, "processes", "the kernel does not tell their ctrl_groups (cpu_resctrl_groups)", remedy)
    else:
        yield Finding(OK, "processes", "are shown")
    version = machine.cgroup_version()
    if version is None:
        remedy = "mount them: what exec brings into a container, and whether a pod is there, is told by cgroups"
        yield Finding(FAILURE, "cgroups", "none are mounted", remedy)
    else:
        yield Finding(OK, "cgroups", version)


# --- The program


def _programs(site: Site) -> Iterator[Finding]:
    yield Finding(OK, "installed by", site.origin.name)
    for path in site.programs:
        yield from _program(site, path)
    if site.origin.link and os.path.realpath(site.places.link) not in map(os.path.realpath, site.programs):
        remedy = f"{site.origin.again}; elsewhere: doctor --prefix=DIR"
        yield Finding(WARNING, "program", f"{site.places.link} does not lead to it", remedy)


def _program(site: Site, path: str) -> Iterator[Finding]:
    try:
        shipped = Shipped(path)
    except FileNotFoundError:
        yield Finding(FAILURE, "program", f"no {path}", site.origin.again)
        return
    except ValueError as error:
        yield Finding(FAILURE, "program", str(error), f"move it away, then: {site.origin.again}")
        return
    found = os.stat(path)
    if found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        remedy = f"chown root {path}; chmod 755 {path}: runtimes start it as root"
        yield Finding(FAILURE, "program", f"{path} can be changed by others than root", remedy)
    yield from _python(shipped)
    try:
        install.prove(path)
    except Refused as error:
        yield Finding(FAILURE, "program", str(error), "until then each container that has the hook fails to start")
    else:
        yield Finding(OK, "program", f"{path} runs")


def _python(shipped: Shipped) -> Iterator[Finding]:
    found = machine.interpreter(shipped.python)
    if not isinstance(found, Interpreter):
        yield Finding(FAILURE, "Python", found, "install it, or install --python=PATH")
        return
    version = ".".join(map(str, found.version))
    if found.version < machine.OLDEST:
        yield Finding(FAILURE, "Python", f"{found.path} is {version}, which is too old", "install --python=PATH")
    elif shipped.has_bytecode(found.magic):
        yield Finding(OK, "Python", f"{found.path}, {version}; the file has bytecode for it")
    elif node_bytecode.is_current(os.path.realpath(shipped.path), shipped, found):
        yield Finding(OK, "Python", f"{found.path}, {version}; this node has made bytecode for it")
    else:
        problem = "no bytecode for it: each hook runs from the sources, which is several times slower"
        yield Finding(WARNING, "Python", f"{found.path} is {version}: {problem}", f"{shipped.path} bytecode")


# --- hooks.d


def _hooks_d(site: Site) -> Iterator[Finding]:
    for directory in site.hooks_dirs:
        entries = hooksd.read_directory(directory)
        readers = hooksd.READERS.get(directory, "whoever is told to")
        yield Finding(OK, directory, f"{len(entries)} files; read by {readers}")
        for entry in entries:
            yield from _file(site, entry)
    ours = site.ours
    if not ours:
        yield Finding(
            FAILURE, "hooks.d", f"none of {', '.join(site.hooks_dirs)} has the hook called", site.origin.again
        )
    yield from _namesakes(ours)


def _namesakes(ours: list[Entry]) -> Iterator[Finding]:
    """Ours in several directories: a namesake in a later one is how an administrator gives the hook other options."""
    for entry in ours:
        earlier = [it for it in ours[: ours.index(entry)] if it.name == entry.name]
        if earlier:
            yield from _replaces(entry, earlier[-1])
        elif os.path.dirname(entry.path) != os.path.dirname(ours[0].path):
            remedy = "remove all but one: readers of both directories call the hook twice"
            yield Finding(FAILURE, "hooks.d", f"it is called from {_named([it.path for it in ours])}", remedy)
            return


def _replaces(entry: Entry, earlier: Entry) -> Iterator[Finding]:
    directory = os.path.dirname(entry.path)
    readers = {"podman": ("Podman", runtime_config.of_podman())} if PODMAN in entry.name else {}
    readers |= {"crio": ("CRI-O", runtime_config.of_crio())} if KUBERNETES in entry.name else {}
    yield Finding(OK, "hooks.d", f"{entry.path} takes the place of {earlier.path}, for who reads both")
    for program, (who, reads) in readers.items():
        if machine.program(program) and directory not in reads:
            found = f"{who} reads {', '.join(reads)}, not {directory}: it goes by {earlier.path}"
            yield Finding(WARNING, "hooks.d", found, f"name {directory} in its hooks_dir, too, as the last one")


def _file(site: Site, entry: Entry) -> Iterator[Finding]:
    if entry.problem is not None:
        remedy = "mend or remove it: Podman starts no container, CRI-O and the hook-injector do not start"
        yield Finding(FAILURE, entry.path, f"readers refuse it: {entry.problem}", remedy)
    elif entry.calls(PROGRAM):
        yield from _own_file(site, entry)
    elif entry.remark is not None:
        yield Finding(WARNING, entry.path, entry.remark, "it is another program's: see there")
    elif entry.file and "poststop" in entry.file.stages and any(_runs_before(entry, it) for it in site.ours):
        remedy = "under runc a poststop that fails keeps those after it from running: let its name sort after ours"
        yield Finding(WARNING, entry.path, "its poststop comes before ours", remedy)


def _own_file(site: Site, entry: Entry) -> Iterator[Finding]:
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


# --- Who starts containers


def _runtimes(site: Site) -> Iterator[Finding]:
    found = [name for name in machine.RUNTIMES if machine.program(name)]
    if not found:
        yield Finding(
            WARNING, "runtimes", f"found no {', '.join(machine.RUNTIMES)}", "Docker has no hooks for its users"
        )
        return
    yield Finding(OK, "runtimes", ", ".join(found))
    directories = {os.path.dirname(entry.path) for entry in site.ours}
    if "crio" in found:
        yield from _reads("CRI-O", runtime_config.of_crio(), directories)
        yield from _rdt()
    if "podman" in found and any(PODMAN in entry.name for entry in site.ours):
        yield from _reads("Podman", runtime_config.of_podman(), directories)
    if "crio" not in found and not _CONTAINERDS.isdisjoint(found):
        yield from _containerd(site)


def _reads(who: str, reads: list[str], directories: set[str]) -> Iterator[Finding]:
    if not directories or directories & set(reads):
        yield Finding(OK, who, f"reads {', '.join(reads)}")
    else:
        remedy = f"install --hooks-dir={reads[-1] if reads else hooksd.SYSTEM}, or name ours in its hooks_dir"
        yield Finding(FAILURE, who, f"reads {', '.join(reads) or 'no hooks.d'}: none of our files is there", remedy)


def _rdt() -> Iterator[Finding]:
    path = runtime_config.rdt_config_file()
    if path is not None:
        found = (
            f"rdt_config_file is {path}: each start of CRI-O removes ctrl_groups that are not in it, and empty groups"
        )
        yield Finding(WARNING, "CRI-O", found, "what it removes of ours, reconcile makes anew: keep the timer running")


def _containerd(site: Site) -> Iterator[Finding]:
    """It reads no hooks.d itself: the NRI hook-injector does, or its own base_runtime_spec names the hook."""
    found, injectors = containerd.look(), injector.running()
    specs = [it for it in found.specs if _names_hook(site, it.place)]
    in_force = [it.path for it in specs if it.in_force]
    yield from _injectors(injectors)
    yield from _refusals(found, bool(injectors or not in_force))
    if injectors and in_force:
        remedy = "each hook is called twice, which does no harm and takes its time: one of the two is enough"
        yield Finding(WARNING, "containerd", f"the NRI hook-injector runs, and {in_force[0]} names the hook", remedy)
    elif injectors or in_force:
        yield Finding(OK, "containerd", "the NRI hook-injector runs" if injectors else f"{in_force[0]} names the hook")
    elif specs:
        remedy = "version 3 has the runtimes in the table plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes"
        found_in = f"{specs[0].path} names the hook, but its base_runtime_spec is in a table that containerd ignores"
        yield Finding(FAILURE, "containerd", found_in, remedy)
    elif any(KUBERNETES in entry.name for entry in site.ours):
        remedy = f"run the hook-injector of containerd/nri, or see {NAME} base-runtime-spec"
        yield Finding(
            WARNING, "containerd", "no NRI hook-injector runs, and no base_runtime_spec names the hook", remedy
        )


def _injectors(pids: Iterable[int]) -> Iterator[Finding]:
    """Those that give no container the hook."""
    for pid in pids:
        subject = f"hook-injector (pid {pid})"
        try:
            reason = injector.why_blind(pid)
        except OSError as error:
            yield Finding(WARNING, subject, f"cannot read its root directory: {error.strerror}", "run it as root")
            continue
        if reason is not None:
            remedy = "mount that directory of the host into its pod at the same path (see the README, containerd)"
            yield Finding(FAILURE, subject, f"{reason}: it gives no container the hook", remedy)


def _refusals(found: Found, is_injected: bool) -> Iterator[Finding]:
    """What keeps containerd from taking hooks of the injector, and what could not be found out."""
    if is_injected:
        for path in found.rejecting:
            text = f"{path}: NRI's default_validator has reject_oci_hook_adjustment = true"
            remedy = (
                "containers that the hook-injector gives the hook do not start: set it to false, or remove the hook"
            )
            yield Finding(FAILURE, "containerd", text, remedy)
    for line in found.unclear:
        yield Finding(
            WARNING, "containerd", line, "whether it names the hook is not known; uninstall keeps the program"
        )


def _names_hook(site: Site, path: str) -> bool:
    """Whether a specification of containers has the hook; one that cannot be read is no matter of ours."""
    try:
        return bool(programs_in(path) & {*site.programs, site.places.link})
    except (OSError, ValueError):
        return False


def _passed_on(site: Site) -> Iterator[Finding]:
    """Options that go by annotations of pods, which containerd keeps to itself unless it is told to pass them on."""
    if machine.program("crio") or not any(map(machine.program, _CONTAINERDS)):
        return
    calls: list[Sequence[str]] = [it.file.hook.args or [] for it in site.ours if it.file and KUBERNETES in it.name]
    configuration = containerd.look()
    specs = [spec.place for spec in configuration.specs]
    calls += [it for path in specs if _names_hook(site, path) for it in would_inject.calls(path)]
    needed = set()
    for arguments in calls:
        options, _ = parse(list(arguments)[2:])
        needed |= {key for key in options.annotation if not key.startswith("io.kubernetes.cri.")}
        needed |= {OPT, f"{OPT}/CONTAINER"} if options.monitor != "all" else set()
    lacking = sorted(key for key in needed if not configuration.passes_on(key))
    if lacking:
        found = f"it does not pass on {', '.join(lacking)}: --monitor and --annotation of the hook see nothing of them"
        remedy = f'pod_annotations = ["{OPT}", "{OPT}/*"] in its table of the runtime (config.toml), and restart it'
        yield Finding(WARNING, "containerd", found, remedy)


def _peers(site: Site) -> Iterator[Finding]:
    running = {os.path.basename(word) for command in machine.commands() for word in command[:2]}
    for name, remedy in _PEERS.items():
        if any(it == name or it.endswith("-" + name) for it in running):
            yield Finding(WARNING, "beside us", f"{name} runs", remedy.format(run_dir=site.options.run_dir))


def _devices(_site: Site) -> Iterator[Finding]:
    """CDI devices whose hooks run after ours."""
    for path, program in cdi.hooks():
        found = f"{path} has {program} called at createRuntime; CRI-O runs that after our hook"
        remedy = (
            "if it writes the container into a ctrl_group (k8s-dra-driver-resctrl does), that takes it out of its "
            "mon_group until the next reconcile: keep the timer running"
        )
        yield Finding(WARNING, "CDI", found, remedy)


# --- What was recorded


def _records(site: Site) -> Iterator[Finding]:
    run_dir = site.options.run_dir
    if not os.path.isdir(run_dir):
        yield Finding(OK, "records", f"no {run_dir} yet: no hook has run since the boot")
        return
    room = os.statvfs(run_dir)
    if room.f_files and (room.f_favail < 1000 or room.f_bavail * room.f_frsize < 1 << 20):
        yield Finding(
            FAILURE, "records", f"the file system of {run_dir} is full", "containers run unmonitored: make room"
        )
    seen = snapshot.look(site.options)
    yield Finding(OK, "records", f"{len(seen.keys)} keys")
    for broken in [*seen.unreadable, *seen.unreadable_failures]:
        yield Finding(WARNING, broken.file, broken.problem, f"{NAME} reconcile")
    for condition in ("group missing", "recovering"):
        keys = [key.state.key for key in seen.keys if key.condition == condition]
        if keys:
            yield Finding(WARNING, "records", f"{condition}: {_named(keys)}", f"{NAME} reconcile")
    by_reason: dict[str, list[str]] = {}
    for failure in seen.failures:
        by_reason.setdefault(failure.reason, []).append(failure.container)
    for reason, containers in by_reason.items():
        found = f"{len(containers)} containers: {reason}: {_named(containers)}"
        yield Finding(WARNING, "failures", found, f"{NAME} list tells more of each")


def _containers(site: Site) -> Iterator[Finding]:
    """Live containers without the hook, or with it and on no record."""
    states, complaints = site.states
    with Records(site.options.run_dir) as records:
        recorded = {*records.indexed(), *records.failed()}
    hooked = [state["id"] for state in states if _names_hook(site, f"{state['bundle']}/config.json")]
    lost = [container for container in hooked if container not in recorded]
    unhooked = [it["id"] for it in states if it["id"] not in recorded and it["id"] not in hooked]
    yield Finding(OK, "containers", f"{len(states)} run, {len(hooked)} of them with the hook")
    if lost:
        remedy = f"filters and --monitor leave some out on purpose; else {NAME} reconcile --adopt"
        yield Finding(WARNING, "containers", f"on no record, though they have the hook: {_named(lost)}", remedy)
    if unhooked:
        remedy = f"{NAME} reconcile --adopt, if they are meant to be monitored; doctor --inject=FILE tells why not"
        yield Finding(WARNING, "containers", f"without the hook: {_named(unhooked)}", remedy)
    for line in complaints:
        yield Finding(WARNING, "containers", line, "its containers cannot be looked at, by reconcile --adopt neither")


def _lost(site: Site) -> Iterator[Finding]:
    """Containers on record that live, though their runtime has lost them: CRI-O was killed, say.

    Told by the containers that runtimes do know of: where they know of none, they keep them where nobody looks.
    """
    bundles = {state["id"]: state["bundle"] for state in site.states[0]}
    live = {
        container: key.state
        for key in snapshot.look(site.options).keys
        for container, member in key.state.members.items()
        if key.dead[container] is False and cgroups.is_own(member.cgroup, container)
    }
    if bundles.keys().isdisjoint(live):
        return
    newer, untold = oci_runtimes.states_of(live.keys() - bundles.keys())
    bundles.update({container: str(state["bundle"]) for container, state in newer.items()})
    for container, state in live.items():
        name = f"{state.pod_namespace}/{state.pod_name} ({container[:12]})" if state.pod_name else container[:12]
        remedy = f"delete its pod, or end its processes by hand: {NAME} show {container}"
        if container in untold:
            continue
        if container not in bundles:
            found = "its processes live, and no OCI runtime knows it"
            yield Finding(WARNING, "lost", f"{printable(name)}: {found}", remedy)
        elif not os.path.exists(f"{bundles[container]}/config.json"):
            found = f"its processes live, and its bundle is gone ({bundles[container]})"
            yield Finding(WARNING, "lost", f"{printable(name)}: {found}", remedy)


def _unhooked(site: Site) -> Iterator[Finding]:
    """What reconcile found of containers that run and were never hooked."""
    seen = snapshot.look(site.options).unhooked
    if seen is None:
        return
    names = seen.names()
    if names:
        found = f"{len(names)} containers run and were never hooked, as of {seen.since}: {_named(names)}"
        remedy = (
            f"see hooks.d, runtimes and containerd above: does the hook-injector run, does the runtime read our JSON? "
            f"Containers from before the install: {NAME} reconcile --adopt"
        )
        yield Finding(FAILURE, "unhooked", found, remedy)
    else:
        yield Finding(OK, "unhooked", f"none, as of {seen.since}")
    if seen.unchecked:
        found = f"{seen.unchecked} containers without a record could not be checked, as of {seen.since}"
        remedy = "their runtime did not answer, is none of those in README (--adopt), or cannot be seen from here"
        yield Finding(WARNING, "unhooked", found, remedy)


# --- What is there besides


def _timer(site: Site) -> Iterator[Finding]:
    if not site.origin.timer:
        yield _pod_of_chart()
        return
    timer = os.path.basename(site.places.timer)
    if not machine.has_systemd():
        remedy = f"have `{NAME} reconcile` called once a minute by other means"
        yield Finding(WARNING, "timer", "systemd does not run here", remedy)
        return
    if (problem := machine.run(["systemctl", "is-active", timer]).problem) is not None:
        yield Finding(WARNING, "timer", f"{timer} is not active ({problem})", f"systemctl enable --now {timer}")
    elif machine.run(["systemctl", "is-failed", "--quiet", os.path.basename(site.places.service)]).status == 0:
        service = os.path.basename(site.places.service)
        yield Finding(WARNING, "timer", f"{service} failed", f"journalctl -u {service}")
    else:
        yield Finding(OK, "timer", f"{timer} is active")
    yield from _options_of_timer(site)


def _pod_of_chart() -> Finding:
    """On a node of the chart's a pod does the timer's work."""
    if any(set(words) >= _RECONCILES for words in machine.commands()):
        return Finding(OK, "reconcile", "the chart's pod does it")
    found = "no pod of the chart's runs here: what hooks cannot do is not put right"
    return Finding(WARNING, "reconcile", found, "kubectl get pods of the chart's DaemonSet on this node")


def _options_of_timer(site: Site) -> Iterator[Finding]:
    """What reconcile does in a hook's place is done by the hook's options: the unit's, or those of its file."""
    files = [path for path in (site.places.service, site.places.conf) if os.path.exists(path)]
    if not files:
        return
    last = [line for path in files for line in _options_in(path)][-1:]
    options, _own = parse([word for line in last for word in line.split() if word != "--adopt"])
    anybodys = "--containers=all"  # reconcile is for all of them
    theirs = [parse([*(it.file.hook.args or [])[2:], anybodys])[0] for it in site.ours if it.file is not None]
    if theirs and options not in theirs:
        remedy = f"`{NAME} install` writes both; beside those of {site.origin.name}, OPTIONS= in {site.places.conf}"
        if site.origin is origins.INSTALL:
            remedy = f"{NAME} install writes both"
        yield Finding(WARNING, "timer", f"{files[-1]} has other options than the hook", remedy)


def _options_in(path: str) -> list[str]:
    """What each line of a unit or of its file of options gives to reconcile."""
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line.removeprefix("Environment=") for line in file]
    return [line.partition("=")[2].strip() for line in lines if line.startswith("OPTIONS=")]


def _log(_site: Site) -> Iterator[Finding]:
    if os.path.exists("/dev/log"):
        yield Finding(OK, "syslog", "there")
    else:
        yield Finding(WARNING, "syslog", "no /dev/log: failures are in the records alone", "run journald or a syslogd")


CHECKS: dict[str, Callable[[Site], Iterator[Finding]]] = {
    "root": _root,
    "resctrl": _resctrl,
    "RMIDs": _rmids,
    "processes": _processes,
    "program": _programs,
    "hooks.d": _hooks_d,
    "runtimes": _runtimes,
    "annotations": _passed_on,
    "beside us": _peers,
    "CDI": _devices,
    "records": _records,
    "containers": _containers,
    "unhooked": _unhooked,
    "lost": _lost,
    "timer": _timer,
    "syslog": _log,
}
"""The checks, by what they are about."""


# --- Would this container get the hook?


def inject(path: str, directories: Iterable[str] = ()) -> Iterator[Finding]:
    """What readers of hooks.d make of a container, and what our hook then makes of it. Raises OSError, ValueError.

    What has the hook in its config.json gets it in any case: of a base_runtime_spec, or of a reader before us.
    """
    container = would_inject.told(path, tuple(directories))
    yield Finding(OK, "read by", f"{container.reader}, from {', '.join(container.directories)}")
    if container.remark:
        remedy = 'it matters where a file goes by another one: give what kubelet sent, as {"annotations": {...}}'
        yield Finding(WARNING, "read by", container.remark, remedy)
    for arguments in container.given:
        yield Finding(OK, "config.json", f"has the hook: {would_inject.becomes(container, arguments)}")
    verdicts = would_inject.judge(container)
    for verdict in verdicts:
        yield _judged(container, verdict)
    gets = container.given or any(it.why_not is None and it.entry.calls(PROGRAM) for it in verdicts)
    if not gets:
        yield Finding(FAILURE, "the hook", "this container does not get it", container.remedy)
    elif container.reader == would_inject.INJECTOR and not container.given:
        yield from _whether_injected()


def _judged(container: Told, verdict: Verdict) -> Finding:
    """What a file of hooks.d means for a container."""
    entry, why_not = verdict.entry, verdict.why_not
    if entry.problem is not None:
        return Finding(FAILURE, entry.path, f"readers refuse it, and every container: {entry.problem}", "mend it")
    if why_not is not None:
        return Finding(OK, entry.path, f"no: {why_not}")
    if entry.file is None or not entry.calls(PROGRAM):
        return Finding(OK, entry.path, "yes; it is another program's")
    becomes = would_inject.becomes(container, entry.file.hook.args or [])
    if not verdict.unless:
        return Finding(OK, entry.path, f"yes: {becomes}")
    remedy = 'let the file go by the key alone, with ".*" for the value'
    return Finding(WARNING, entry.path, f"yes, {verdict.unless}: {becomes}", remedy)


def _whether_injected() -> Iterator[Finding]:
    """What hooks.d promises under containerd, an injector that runs and sees it has to keep."""
    pids = injector.running()
    yield from _injectors(pids)
    if not pids:
        yield Finding(WARNING, "read by", "no NRI hook-injector runs here", "run it, or see the README on containerd")


# --- Does it work here?


def try_group(root: str) -> Iterator[Finding]:
    """Make a group, put a child into it, read its counters, and remove it. What does not work is the last finding."""
    try:
        for line in self_test.run(root):
            yield Finding(OK, "self-test", line)
    except (HookError, OSError) as error:
        yield Finding(FAILURE, "self-test", str(error), "doctor without --self-test may tell why")


def _named(things: Iterable[str]) -> str:
    first = list(things)
    more = f" and {len(first) - _MOST_NAMED} more" if len(first) > _MOST_NAMED else ""
    return ", ".join(first[:_MOST_NAMED]) + more
