# SPDX-License-Identifier: Apache-2.0
"""The table of all checks.

A check yields what it finds: the level, what is there, and the remedy.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property

from hook import entry, host, inventory, rare, reclaim, resctrl, system
from hook.errors import HookError
from hook.install.install import Program, Refused, try_program
from hook.models import Options
from hook.node import engines, files, hooksd, paths, processes, programs
from hook.node.models import HookProgram
from hook.node.paths import CONTAINERDS, NAME, Origin, Places, find_origin, find_prefix, is_stub
from hook.rare import as_hook_error
from hook.reconcile.rotate import LARGEST
from hook.show import name_all, name_first
from hook.show.findings import FAILURE, OK, WARNING, Finding, list_findings
from hook.show.snapshot import TRAFFIC, Inventory, list_events, take_snapshot, tracks_few
from hook.words import explain

# Seconds: timers run reconcile and the textfile every minute, and watch renews its record as often.
_OVERDUE = 300.0
_TEXTFILE = "/var/lib/prometheus/node-exporter/resctrl.prom"
_UID = "[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}"
_TOOLS = {
    f"nri-{_UID}": "an NRI plugin",
    _UID: "the NRI plugin resctrl-mon, or Kepler",
    f"pod_{_UID}": "the NRI plugin of unvariance",
    f"pod{_UID}": "kubelet (katalyst)",
    "[0-9a-f]{64}": "the OCI runtime (enableMonitoring)",
    "crio-.*": "CRI-O",
    "cadvisor-.*": "cAdvisor",
    "pqos-.*": "pqos",
    "cri-resmgr[.].*": "CRI Resource Manager",
}
"""The tools by the names that they give to mon_groups."""


class Site:
    """The installation to check, and the path of the file that runs.

    `hooks_dirs` are the hooks.d directories, in the order of precedence.
    """

    def __init__(
        self, places: Places, options: Options, hooks_dirs: tuple[str, ...], program: str
    ) -> None:
        self.places, self.options, self.hooks_dirs, self.program = (
            places,
            options,
            hooks_dirs,
            program,
        )
        self.checking = ""  # the subject of the check that runs

    @cached_property
    def entries(self) -> list[hooksd.Entry]:
        """The files of hooks.d. Raises OSError."""
        return [
            entry for directory in self.hooks_dirs for entry in hooksd.read_directory(directory)
        ]

    @property
    def ours(self) -> list[tuple[hooksd.Entry, HookProgram]]:
        """The hooks.d files that call the hook, and how. Raises OSError."""
        return [(entry, hook) for entry in self.entries if (hook := entry.our_hook) is not None]

    @property
    def programs(self) -> list[str]:
        """The programs that hooks.d calls, or that of `places` if it calls none. Raises OSError."""
        return sorted({hook.path for _, hook in self.ours}) or [self.places.program]

    @cached_property
    def origin(self) -> Origin:
        """The owner of the installation that hooks.d calls, or of `places` if it calls none.

        Raises OSError.
        """
        for file, hook in self.ours:
            if (prefix := find_prefix(hook.path)) is not None:
                return find_origin(Places(prefix, os.path.dirname(file.path)))
        return find_origin(self.places)

    @property
    def is_for_jobs(self) -> bool:
        """Whether the node was installed for jobs alone, and no hooks.d file calls the hook.

        Raises OSError.
        """
        return not self.ours and self.places.is_for_jobs()

    @property
    def installations(self) -> list[Places]:
        """The installations that hooks.d calls, or that of `places` if it calls none.

        Raises OSError.
        """
        prefixes = filter(None, map(find_prefix, self.programs))
        return [Places(prefix) for prefix in dict.fromkeys(prefixes)] or [self.places]

    def call(self, *words: str) -> str:
        """Return a command that calls the file that runs, by its link or its path,
        for the places of these options.
        """
        link, path = programs.find_program(NAME), self.program
        is_linked = link is not None and os.path.realpath(link) == os.path.realpath(path)
        name = [NAME] if is_linked else [path] if os.access(path, os.X_OK) else ["python3", path]
        given, default = dict(self.options), dict(Options())
        # No hooks.d file, and so no option.
        writes_none = {"--for=jobs", "--for=same"}.intersection(words)
        kept = () if writes_none else paths.OPTIONS
        places = [
            f"--{place.replace('_', '-')}={given[place]}"
            for place in kept
            if given[place] != default[place]
        ]
        return _show(*name, *words, *places)

    @property
    def again(self) -> str:
        """Return how to install the files again: for the same targets, with the same options.

        Raises OSError.
        """
        return self._install(self.installations[0])

    def _install(self, places: Places) -> str:
        if self.origin is not paths.INSTALL:
            return self.origin.again
        words = ["install"]
        if self.ours:
            words.append("--for=same")
        elif self.is_for_jobs or not paths.find_targets():
            words.append("--for=jobs")
        if not self.ours and places.adopts():
            words.append("--adopt")
        if places.prefix != paths.USR:
            words.append(f"--prefix={places.prefix}")
        if not self.ours and places.hooks_dir not in self.hooks_dirs:
            words.append(f"--hooks-dir={self.hooks_dirs[-1]}")
        return self.call(*words)

    def replace(self, path: str) -> str:
        """Return how to install a program again:
        `install` replaces no file that it does not know, as a torn one.
        """
        if (prefix := find_prefix(path)) is None:  # it was put there by hand
            return f"copy {self.program} to {path}"
        places = Places(prefix)
        is_foreign = self.origin is paths.INSTALL and places.is_foreign(path)
        return (
            f"{_show('mv', path, path + '.damaged')}, then " if is_foreign else ""
        ) + self._install(places)

    @cached_property
    def snapshot(self) -> Inventory:
        """The node as `list` shows it. Raises HookError, OSError."""
        return take_snapshot(self.options)


Found = Iterator[tuple[str, str, str]]
"""The level, what is there, and the remedy, which is empty if the level is ok.

Backquotes mark a command to type.
"""


def _show(*words: str) -> str:
    return f"`{shlex.join(words)}`"


def _check_root(_site: Site) -> Found:
    if system.user_id() != 0 or system.in_user_namespace():
        what = "not running as root, or only inside a user namespace (rootless)"
        yield FAILURE, what, "run it as root on the host: rootless containers cannot be monitored"
    if not host.in_host_namespaces():
        yield FAILURE, host.NOT_HOST_NAMESPACES, host.NAMESPACES_HINT


# --- resctrl, and what the CPU counts: not every one counts memory traffic, and some have fewer
# counters than groups


def _check_resctrl(site: Site) -> Found:
    kernel = resctrl.Resctrl(site.options.resctrl_root)
    if kernel.is_mounted():
        yield from [*_check_read_only(kernel.root)] or [(OK, f"mounted on {kernel.root}", "")]
    elif not kernel.exists(kernel.root):
        remedy = (
            "use a machine and a kernel with Intel RDT, AMD QoS or Arm MPAM (see the "
            "documentation on hardware)"
        )
        yield FAILURE, f"no {kernel.root}: the kernel or the CPU does not support resctrl", remedy
    elif system.find_directory(kernel.root + "/info"):
        remedy = (
            "use a CPU with CMT, MBM, AET or MPAM monitors; look for rdt= and clearcpuid= at boot"
        )
        yield (
            FAILURE,
            f"{kernel.root} is mounted but does not support monitoring: no mon_groups",
            remedy,
        )
    else:
        remedy = (
            f"`mount -t resctrl resctrl {kernel.root}`, or by /etc/fstab; busy: lsns shows who "
            "else has it"
        )
        yield FAILURE, f"not mounted on {kernel.root}", remedy


def _check_counters(site: Site) -> Found:
    """Yield the kinds of counters: MPAM and some CPUs count only cache or traffic."""
    names = system.try_call(system.list_directory, site.options.resctrl_root + "/info") or []
    kinds = [name for name in names if name.endswith("_MON")]
    if "PERF_PKG_MON" in kinds:
        yield OK, ", ".join(kinds), ""
    elif kinds:
        remedy = "energy needs an Intel CPU with AET, and a kernel that supports it"
        yield WARNING, f"{', '.join(kinds)}; no energy (PERF_PKG_MON)", remedy


def _check_traffic(site: Site) -> Found:
    """Yield why memory traffic is not counted, or not in all groups."""
    root = site.options.resctrl_root
    events = list_events(root)
    if events and events.isdisjoint(TRAFFIC):
        remedy = (
            "use a CPU with MBM, or MPAM bandwidth monitors on or behind the L3 cache; look for "
            "rdt= at boot"
        )
        yield WARNING, f"not counted: the kernel offers {', '.join(sorted(events))}", remedy
    elif events and tracks_few(root):
        what = (
            "counted in part: this CPU says Unavailable of groups that it does not track, so use "
            "has the mark >="
        )
        yield (
            WARNING,
            what,
            "use fewer groups, or ABMC's counters: mbm_assign_mode (see the documentation on "
            "hardware)",
        )
    if names := site.snapshot.unassigned:
        what = name_all(names, "group", " without a hardware counter")
        remedy = "free some counters (see the documentation on hardware), then restart their pods"
        yield WARNING, f"not counted in {what}", remedy


def _check_rmids(site: Site) -> Found:
    if (rmids := site.snapshot.rmids) is None:
        return
    if rmids.limit and rmids.ours + rmids.others >= rmids.limit:
        yield (
            FAILURE,
            f"{rmids}: none left",
            "use fewer pods or ctrl_groups, or remove groups of other tools",
        )
    else:
        yield OK, str(rmids), ""
    recorded = {group.record.path for key in site.snapshot.keys for group in key.groups}
    unrecorded = [
        path
        for path in inventory.list_mon_groups(site.options.resctrl_root)
        if path not in recorded
    ]
    others = [
        path
        for path in unrecorded
        if not os.path.basename(path).startswith(site.options.group_prefix)
    ]
    if others:
        tools = Counter(name_tool(os.path.basename(path)) for path in others)
        by_tool = "; ".join(f"{tool}: {count}" for tool, count in tools.most_common())
        remedy = (
            "remove unused ones; have others leave containers alone (Kepler: "
            f"base-path={site.options.run_dir})"
        )
        yield WARNING, name_all(others, "group", f" of other tools ({by_tool})"), remedy


def _check_leaks(site: Site) -> Found:
    """Yield the groups of ours that no key needs: those that reconcile removes,
    and those that a task holds.
    """
    kernel, held = resctrl.Resctrl(site.options.resctrl_root), list[str]()
    rebuilt = (
        key for key in site.snapshot.keys if key.condition == "recovering" and not key.list_alive()
    )
    unowned = {group.record.path for key in rebuilt for group in key.groups if group.exists}
    for path in sorted(unowned.union(site.snapshot.orphans)):
        if holders := processes.describe_tasks(system.try_call(kernel.tasks, path)):
            held.append(f"{path} by {holders}")
    lone = [
        path
        for path in site.snapshot.orphans
        if not any(line.startswith(f"{path} by ") for line in held)
    ]
    if lone:
        yield (
            WARNING,
            name_all(lone, "group", " of ours that no record names"),
            site.call("reconcile"),
        )
    if held:
        what = name_all(held, "group", " of ours held by processes of no known container")
        remedy = (
            f"end them, or write their pids to {kernel.root}/tasks: the next reconcile removes "
            "the group"
        )
        yield WARNING, what, remedy


def name_tool(group: str) -> str:
    """Return the tool that gives mon_groups such a name, as far as the name tells."""
    return next(
        (tool for pattern, tool in _TOOLS.items() if re.fullmatch(pattern, group)), "unknown"
    )


# --- The program


def _check_programs(site: Site) -> Found:
    """Yield for each program that hooks.d calls that it runs, or what is wrong with it."""
    for path in site.programs:
        yield from _check_writers(path)
        try:
            if is_stub(path) or not os.path.exists(path):
                raise Refused(
                    f"{path} is missing, or only the stub that a removal leaves: nothing is "
                    "monitored"
                )
            try_program(path)
        except Refused as error:
            yield FAILURE, str(error), f"see why, or install it again: {site.replace(path)}"
        else:
            yield OK, f"{path} runs, installed by {site.origin.name}", ""


def _check_writers(path: str) -> Found:
    """Yield what lets others than root change a file that says what runtimes run as root: it,
    or a directory above.
    """
    for open_path, remedy in _list_open(path):
        what = (
            f"{open_path} is not owned by root, or is writable by others, who choose what root runs"
        )
        yield FAILURE, what, remedy


def _list_open(path: str) -> Iterator[tuple[str, str]]:
    """Yield what others than root can change of a file and the directories above it,
    and the commands against it.
    """
    path = os.path.realpath(path)
    while path != "/":
        status = system.try_call(os.stat, path)
        # A directory's group may be the administrators', and in a sticky one a file is its owner's.
        mode = 0 if status is None else status.st_mode
        is_shared = (
            mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH
            if stat.S_ISDIR(mode)
            else mode & 0o022
        )
        if status is not None and (status.st_uid != 0 or is_shared):
            yield path, f"{_show('chown', 'root', path)}, {_show('chmod', 'go-w', path)}"
        path = os.path.dirname(path)


def _check_link(site: Site) -> Found:
    """Yield whether the link is there by which the units call the program."""
    for places in site.installations:
        if (
            os.path.exists(places.timer)
            and os.path.exists(places.program)
            and not os.path.exists(places.link)
        ):
            what = (
                f"{places.link} is missing, or leads nowhere: the units call it, so reconcile "
                "does not run"
            )
            yield FAILURE, what, site.replace(places.program)


def _check_namesakes(site: Site) -> Found:
    """Yield the programs of our name that are not ours,
    of those that hooks.d calls and that a shell finds.
    """
    called = [
        file.hook.path
        for file in (entry.file for entry in site.entries)
        if file and NAME in file.hook.path
    ]
    called += [f"{directory}/{NAME}" for directory in programs.PATH.split(":")]
    for path in dict.fromkeys(
        os.path.realpath(path) for path in called if os.path.exists(path) and not is_stub(path)
    ):
        try:
            Program(path)
        except (OSError, ValueError) as error:
            remedy = (
                "find out whose it is; rename it, or what calls it: containers are not monitored "
                "by that"
            )
            yield (
                WARNING,
                f"not ours: {error}",
                site.replace(path) if path in site.programs else remedy,
            )


# --- hooks.d, and the runtimes, which read it and start containers


def _check_hooks_dirs(site: Site) -> Found:
    """Yield the files that others may write and those that readers reject,
    and whether one calls the hook once.
    """
    read = (*site.hooks_dirs, *(file.path for file in site.entries))
    yield from dict.fromkeys(finding for path in read for finding in _check_writers(path))
    for file in site.entries:
        if file.problem is not None:
            what = (
                f"{file.path}: invalid: CRI-O, Podman and the NRI hook-injector reject it: "
                f"{file.problem}"
            )
            remedy = (
                "fix or remove it: Podman starts no container, CRI-O and the hook-injector do not "
                "start"
            )
            yield FAILURE, what, remedy
    if site.is_for_jobs:
        yield OK, f"no file calls {NAME}, which was installed for jobs alone", ""
    elif not site.ours:
        yield FAILURE, f"no file in {' or '.join(site.hooks_dirs)} calls {NAME}", site.again
    # A file in a later directory overrides its namesake.
    first = {file.name: os.path.dirname(file.path) for file, _ in reversed(site.ours)}
    if len({*first.values()}) > 1:
        what = f"several files call the hook: {name_first(file.path for file, _ in site.ours)}"
        yield (
            FAILURE,
            what,
            "remove all but one: programs that read both directories call the hook twice",
        )


def _check_own_files(site: Site) -> Found:
    """Yield what is wrong with our hooks.d files."""
    for file, hook in site.ours:
        verb = next(iter((hook.args or [])[1:]), None)
        if verb not in entry.STAGES:
            what = (
                f"{file.path}: its args: {verb!r} is no verb of a hook: containers fail, or run "
                "unmonitored"
            )
            yield FAILURE, what, "write hook there, after the program's name"
        options, complaints = hooksd.parse_options(hook)
        problems = [f"its args: {complaint}" for complaint in complaints]
        longest = find_longest_wait(options)
        if hook.timeout is None:
            problems.append("no timeout: a stuck hook blocks forever")
        elif hook.timeout < longest:
            why = f"containers fail to start, for the hook may wait {longest:.1f} s"
            problems.append(f"timeout {hook.timeout} is too short: {why}")
        if file.file is not None and not {*file.file.stages} >= {"createRuntime", "poststop"}:
            problems.append("a stage is missing: the hook needs createRuntime and poststop")
        if file.remark is not None:
            problems.append(file.remark)
        elif file.file is not None and not hooksd.matches_usually(file.file.when):
            problems.append(
                "its `when` matches no container, or only some with annotations of their own"
            )
        again = (
            f"{site.again}; or, if it is yours: "
            if file.path.startswith(site.origin.writes)
            else ""
        )
        for problem in problems:
            yield WARNING, f"{file.path}: {problem}", f"{again}edit {file.path}"


def find_longest_wait(options: Options) -> float:
    """Return how many seconds a hook may wait: that of createRuntime, which has the most waits.

    They are for stdin, for the lock of the key that the container had before, for that of its own
    key, for a search for RMIDs, after which the lock's time starts again, for limbo, and for the
    lock of a failure's record.
    """
    of_locks = 3 * options.lock_timeout + rare.FAILURE_PATIENCE
    return entry.STDIN_PATIENCE + of_locks + reclaim.LONGEST_SEARCH + options.rmid_wait


def _check_engines(site: Site) -> Found:
    """Yield for CRI-O and Podman whether they read the directory of our last file."""
    for engine in (engines.CRIO, engines.PODMAN):
        ours = [
            os.path.dirname(file.path)
            for file, _ in site.ours
            if paths.RUNTIMES[engine.program] in file.name
        ]
        if not ours or not programs.find_program(engine.program):
            continue
        try:
            reads = engine.read_hooks_dirs()
        except files.Unreadable as error:
            what = f"unclear which hooks directories {engine.name} reads: {error}"
            yield WARNING, what, f"see for yourself that its hooks_dir names {ours[-1]}"
            continue
        shown = f"{engine.name} reads {', '.join(reads) or 'no hooks.d'}"
        if ours[-1] in reads:
            yield OK, shown, ""
        else:
            yield (
                FAILURE,
                f"{shown}, and not {ours[-1]}, where our file is",
                f"append {ours[-1]} to its hooks_dir",
            )


def _check_containerd(_site: Site) -> Found:
    """Yield what containerd does with the hook,
    if it starts the containers of Kubernetes, and not CRI-O.

    A base_runtime_spec with the hook counts before the hook-injector,
    whose hooks containerd may reject.
    """
    if programs.find_program("crio") or not any(map(programs.find_program, CONTAINERDS)):
        return
    settings = engines.read_containerd()
    named = [
        spec
        for spec in settings.specs
        if hooksd.calls_ours(system.try_call(hooksd.read_hooks, spec.path) or {})
    ]
    used = [spec for spec in named if spec.is_in_force]
    if used:
        yield OK, f"{used[0].path} names the hook", ""
    elif named:
        what = (
            f"{named[0].path} names the hook, but its base_runtime_spec is in a table that "
            "containerd ignores"
        )
        table = "plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes"
        yield FAILURE, what, f"with version = {named[0].version}, use the table {table}"
    for path in [] if used else settings.rejecting:
        remedy = (
            "set it to false, or remove the hook: containers that get the hook from the "
            "hook-injector do not start"
        )
        yield (
            FAILURE,
            f"{path}: NRI's default_validator has reject_oci_hook_adjustment = true",
            remedy,
        )
    for line in settings.unclear:
        yield WARNING, line, "fix this file: it may name the hook"


# --- Records, and what writes them


def _check_read_only(path: str) -> Found:
    """Yield whether a directory, or the one that it will be made in,
    is on a read-only file system.
    """
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path)
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        remedy = f"`mount -o remount,rw $(findmnt -n -o TARGET -T {shlex.quote(path)})`"
        yield FAILURE, f"{path} is mounted read-only", remedy


def _check_room(path: str) -> Found:
    """Yield whether the file system of the history fills."""
    room = os.statvfs(path)
    # 0: it has no limit.
    if room.f_blocks and (left := room.f_bavail * room.f_frsize) < 2 * LARGEST:
        what = f"the file system of {path} fills: {left >> 20} MiB are left"
        yield (
            WARNING,
            what,
            "free space there: lines that cannot be written wait in memory, and a reboot loses "
            "them",
        )


def _check_records(site: Site) -> Found:
    run_dir = site.options.run_dir
    yield from _check_read_only(run_dir)
    yield from _check_snapshot(site)


def _check_snapshot(site: Site) -> Found:
    """Yield the findings about this subject that `list` shows, too."""
    for finding in list_findings(site.snapshot, site.call):
        if finding.subject == site.checking:
            yield finding.level, finding.found, finding.remedy


def _check_history(site: Site) -> Found:
    yield from _check_snapshot(site)
    named = [hooksd.parse_options(hook)[0].history for _, hook in site.ours]
    if site.is_for_jobs:
        named.append(paths.HISTORY)
    for path in dict.fromkeys(os.path.dirname(file) for file in named if file):
        if not os.path.isdir(path):
            moved = f"{_show('mv', path, path + '.moved')}, then " if os.path.lexists(path) else ""
            what = f"{path} is no directory: no history can be written to it"
            yield WARNING, what, moved + _show("mkdir", "-p", path)
        else:
            yield from _check_read_only(path)
            yield from _check_room(path)
    for file in dict.fromkeys(filter(None, named)):
        status = system.try_call(os.stat, file)
        if status is not None and status.st_size > 2 * LARGEST:
            sizes = (
                f"{status.st_size >> 20} MiB, and reconcile begins a new file at {LARGEST >> 20}"
            )
            what = f"{file} has {sizes}: it cannot write there, or does not run"
            remedy = (
                f"see what {site.call('reconcile')} says; its unit may write elsewhere with "
                "ReadWritePaths="
            )
            yield WARNING, what, remedy
    for file in dict.fromkeys([*filter(None, named), paths.HISTORY]):
        for path, remedy in _list_open(file):
            yield (
                WARNING,
                f"{path} is not owned by root, or is writable by others, who can change a bill",
                remedy,
            )


def _check_reconcile(site: Site) -> Found:
    yield from _check_snapshot(site)
    run = site.snapshot.reconciled
    if run is None or run.ended_at is None:
        what = "it has not ended since boot"
    elif (age := system.unix_time() - run.ended_at) > _OVERDUE:
        what = f"it last ended {age:.0f} s ago"
    elif run.failed or run.unread:
        what = (
            f"{run.failed} of its actions failed; of keys, cgroups and processes {run.unread} "
            "could not be read"
        )
        yield WARNING, what, f"{site.call('reconcile')} says which, and why"
        return
    else:
        yield OK, f"it last ended {age:.0f} s ago, after {run.seconds:.1f} s", ""
        return
    remedy = f"{site.call('reconcile')}; each minute, with systemd: "
    if any(os.path.exists(places.timer) for places in site.installations):
        remedy += _show("systemctl", "enable", "--now", f"{NAME}-reconcile.timer")
    else:
        remedy += site.again  # there is no timer to enable
    yield WARNING, what, remedy


def _check_watch(site: Site) -> Found:
    watched = site.snapshot.watched
    if watched is not None and (age := system.unix_time() - watched.alive_at) > _OVERDUE:
        yield (
            WARNING,
            f"it last wrote its record {age:.0f} s ago",
            f"`systemctl restart {NAME}-watch.service`",
        )


def _check_view(site: Site) -> Found:
    kept = site.snapshot.kept_view
    unit, run_dir = os.path.basename(site.places.view), shlex.quote(site.options.run_dir)
    is_enabled = os.path.lexists(f"/etc/systemd/system/multi-user.target.wants/{unit}")
    if kept is None and is_enabled:
        yield (
            WARNING,
            "its service is enabled, and has not made it",
            f"`systemctl restart {unit}`; its log says why",
        )
    elif kept is not None and (age := system.unix_time() - kept.alive_at) > _OVERDUE:
        remedy = f"`systemctl restart {unit}`" if is_enabled else f"`systemctl enable --now {unit}`"
        remedy += f", or without it: `rm -rf {run_dir}/mon_groups {run_dir}/view.json`"
        yield (
            WARNING,
            f"nothing keeps {site.options.run_dir}/mon_groups: it was last right {age:.0f} s ago",
            remedy,
        )


def _check_textfile(_site: Site) -> Found:
    written = system.try_call(os.path.getmtime, _TEXTFILE)
    if written is not None and (age := system.unix_time() - written) > _OVERDUE:
        remedy = f"`systemctl enable --now {NAME}-textfile.timer`, or without it: `rm {_TEXTFILE}`"
        yield WARNING, f"{_TEXTFILE} is {age:.0f} s old", remedy


CHECKS: list[tuple[str, Callable[[Site], Found]]] = [
    ("root", _check_root),
    ("records", _check_records),
    ("resctrl", _check_resctrl),
    ("counters", _check_counters),
    ("memory traffic", _check_traffic),
    ("RMIDs", _check_rmids),
    ("RMIDs", _check_leaks),
    ("program", _check_programs),
    ("program", _check_namesakes),
    ("program", _check_link),
    ("hooks.d", _check_hooks_dirs),
    ("hooks.d", _check_own_files),
    ("runtimes", _check_engines),
    ("containerd", _check_containerd),
    ("history", _check_history),
    ("failures", _check_snapshot),
    ("taken", _check_snapshot),
    ("unhooked", _check_snapshot),
    ("reconcile", _check_reconcile),
    ("watch", _check_watch),
    ("view", _check_view),
    ("textfile", _check_textfile),
]
"""What doctor looks at, in the order of the output."""


def examine(site: Site) -> Iterator[Finding]:
    """Yield what all checks find.

    The error that ends a check is a failure, which is reported once.
    """
    reported = set()
    for site.checking, check in CHECKS:
        try:
            for level, what, remedy in check(site):
                yield Finding(level, site.checking, what, remedy)
        except (HookError, OSError) as error:
            wording = explain(as_hook_error("a file could not be read", error))
            remedy, wording.hint = wording.hint or "see what is at that path", ""
            if str(wording) not in reported:
                reported.add(str(wording))
                yield Finding(FAILURE, site.checking, f"cannot check: {wording}", remedy)
