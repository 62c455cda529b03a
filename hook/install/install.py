# SPDX-License-Identifier: Apache-2.0
"""Installs the running program, its hooks.d files and its timer, and removes them in the reverse order.

The order matters. Readers of hooks.d use a file as soon as it exists, and containers fail if the hook does not start.
So the program comes first and is tried, and the JSON comes last. An install that is killed before that affects no
container, and the next install completes it.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any, NamedTuple

from hook import procfs, system
from hook.errors import HookError, Reason
from hook.install import steps
from hook.install.program import Program
from hook.install.steps import Refused, Step, Taken, remove_file, run_command, write_file
from hook.models import Options
from hook.node import files, hooksd, programs
from hook.node.paths import INSTALL, MARK, NAME, RUNTIMES, STUB, TARGETS, Places, find_origin
from hook.reconcile import run as reconcile
from hook.reconcile.run import Remains
from hook.report import explain

_DEFAULTS = Options()
# The characters without a special meaning in a unit and in a file for tmpfiles.d.
_PLAIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:+=,@~^-"
_STOPPED = '{"ociVersion":"1.0","id":"resctrl-mon-hook-install","status":"stopped","bundle":"/"}'


class Wanted(NamedTuple):
    """The arguments of an installation."""

    shipped: Program
    places: Places
    targets: tuple[str, ...]
    words: tuple[str, ...] = ()  # options of the hook, for the hooks.d files
    options: Options = _DEFAULTS  # the same, parsed
    adopt: bool = False  # the timer's reconcile gets --adopt
    python: str | None = None  # None means as in `shipped`
    force: bool = False  # replace files of a package, of the Helm chart or of a MachineConfig, too
    watch: bool = False  # start `watch`

    @property
    def interpreter(self) -> str | None:
        """None if the program brings its own."""
        return self.python or self.shipped.python


def install(wanted: Wanted, *, dry_run: bool) -> tuple[Taken, list[str]]:
    """Install; returns the steps taken, and remarks for the operator. Raises Refused."""
    places = wanted.places
    if problems := find_problems(wanted):
        raise Refused(*problems)
    refuse_others(places, force=wanted.force)
    directory = places.at(places.program_dir)
    if not dry_run:
        steps.take_steps([steps.make_directory(directory, 0o755)], dry_run=False)
    with steps.lock_directories(directory, places.at(places.hooks_dir)):
        return steps.take_steps(plan_install(wanted), dry_run=dry_run), list_remarks(wanted)


def refuse_others(places: Places, *, force: bool) -> None:
    """Raise Refused if an installation here has another owner than `install`."""
    found = find_origin(places)
    if found is not INSTALL and not (force or places.top):
        raise Refused(f"{NAME} was installed by {found.name}; remedy: {found.away} first, or --force")


# --- The steps


def plan_install(wanted: Wanted) -> list[Step]:
    """Return all steps, including those that are already done."""
    places, text = wanted.places, wanted.shipped.text
    at = places.at
    here = [] if places.top else [Step("try", places.program, lambda: try_program(places.program))]
    program = wanted.shipped.with_python(wanted.interpreter)
    logrotate = f"{MARK}; later ones keep it as it is\n{text(f'packaging/logrotate/{NAME}')}"
    tmpfiles = text(f"packaging/tmpfiles.d/{NAME}.conf")
    return [
        # Remove an unwanted JSON first, as in uninstall.
        *(remove_file(at(places.json(target))) for target in TARGETS if target not in wanted.targets),
        remove_file(at(places.stub_tmpfiles)),  # before the program: it names what the next boot removes
        # An upgrade tries the new program before it replaces the old one. A hook that starts at that time runs either.
        # No hooks.d file calls a first installation yet, so that one is tried in place.
        write_file(at(places.program), program, 0o755, None if places.top else try_program),
        *here,
        steps.make_link(at(places.link), places.link_target),
        # The timer before the JSON: a container with the hook needs reconcile.
        *(write_file(at(unit), _make_unit(wanted, unit).encode()) for unit in places.units),
        write_file(at(places.tmpfiles), tmpfiles.encode()),
        # No hook makes the directory of the history.
        steps.make_directory(at(places.log_dir), 0o750),
        *([] if os.path.lexists(at(places.logrotate)) else [write_file(at(places.logrotate), logrotate.encode())]),
        *_plan_activation(wanted),
        remove_file(at(places.owner)),  # with --force: the former owner has lost these files
        *(write_file(at(places.json(name)), make_hook_file(wanted, name).encode()) for name in wanted.targets),
    ]


def make_hook_file(wanted: Wanted, target: str) -> str:
    """Return the hooks.d file for a target."""
    places = wanted.places
    text = wanted.shipped.text(f"oci-hooks/{os.path.basename(places.json(target))}")
    shipped = json.loads(text)["hook"]
    given = {word.partition("=")[0] for word in wanted.words}
    kept = [word for word in shipped["args"] if word.partition("=")[0] not in given]
    text = text.replace(json.dumps(shipped["path"]), json.dumps(places.program))
    return text.replace(json.dumps(shipped["args"]), json.dumps([*kept, *wanted.words]))


def _make_unit(wanted: Wanted, path: str) -> str:
    """Return a unit that starts the program of this prefix."""
    text = wanted.shipped.text(f"packaging/systemd/{os.path.basename(path)}")
    if wanted.adopt:
        text = text.replace(f"={Places().link} reconcile\n", f"={Places().link} reconcile --adopt\n")
    return text.replace(f"={Places().link} ", f"={wanted.places.link} ")


def _plan_activation(wanted: Wanted) -> list[Step]:
    places, watch = wanted.places, os.path.basename(wanted.places.watch)
    if places.top or not programs.has_systemd():
        return []
    return [
        run_command("systemd-tmpfiles", "--create", places.tmpfiles),
        run_command("systemctl", "daemon-reload"),
        run_command("systemctl", "enable", "--now", os.path.basename(places.timer)),
        # Restart running services, which still run the former program.
        *([run_command("systemctl", "enable", watch)] if wanted.watch else []),
        run_command("systemctl", "restart" if wanted.watch else "try-restart", watch),
        run_command("systemctl", "try-restart", os.path.basename(places.metrics_service)),
    ]


# --- What prevents an installation


def find_problems(wanted: Wanted) -> list[str]:
    """Return the problems that prevent an installation, each with its remedy."""
    places, problems = wanted.places, []
    if places.prefix.strip(_PLAIN):
        remedy = "use letters, digits and _./:+=,@~^-"
        problems.append(f"--prefix={places.prefix!r} has characters that a systemd unit cannot hold; remedy: {remedy}")
    try:
        wanted.shipped.with_python(wanted.interpreter)
        if not places.top and wanted.interpreter is not None:
            programs.require_python(wanted.interpreter)
    except programs.NoPython as error:
        problems.append(f"{error}; remedy: install it, or name another one with --python=PATH")
    except ValueError as error:
        problems.append(f"--python: {error}; remedy: use a link with a short name")
    foreign = [places.at(path) for path in places.files() if places.is_foreign(path)]
    problems += [f"{path} exists and was not installed by {NAME}; remedy: move it away" for path in foreign]
    # Readers of two directories would call the hook twice, or the wrong one.
    ours = os.path.realpath(places.at(places.hooks_dir))
    others = [directory for directory in hooksd.READERS if os.path.realpath(places.at(directory)) != ours]
    return problems + [
        f"{entry.path} already calls the hook; remedy: remove it, or its package, or uninstall --hooks-dir={directory}"
        for directory in others
        for entry in hooksd.read_directory(places.at(directory))
        if entry.own is not None
    ]


def list_remarks(wanted: Wanted) -> list[str]:
    """Return what the operator has to do after the installation."""
    places, options, found = wanted.places, wanted.options, []
    usual = (_DEFAULTS.resctrl_root, _DEFAULTS.run_dir, places.log_dir, "")
    if others := {options.resctrl_root, options.run_dir, os.path.dirname(options.history)}.difference(usual):
        written = " and ".join(sorted(others))
        found.append(f"let the units write to {written}: ReadWritePaths= in `systemctl edit {NAME}-*`")
    if not places.top and not programs.has_systemd():
        found.append(f"systemd is not running: run `{NAME} reconcile` every minute, for example from cron")
    return found


# --- Whether the program works

# SELinux types of files that are not programs: a runtime may not start one of these, root may.
_NO_PROGRAM_TYPES = ("admin_home_t", "data_home_t", "default_t", "tmp_t", "unlabeled_t", "user_home_t", "user_tmp_t")
_BLOCKERS = "see whether its file system is mounted noexec, or SELinux (ausearch -m avc) or fapolicyd forbids it"


def try_program(path: str) -> None:
    """Run the program like a runtime. Raises Refused if it fails, since containers would fail, too."""
    version = programs.run_program([path, "--version"])
    problem = version.problem or (None if version.output.startswith(f"{NAME} ") else "it does not print its version")
    if problem is None:
        with tempfile.TemporaryDirectory(prefix=NAME) as scratch:
            ended = programs.run_program([path, "hook", f"--run-dir={scratch}/run"], stdin=_STOPPED)
        problem = ended.problem or ended.error.strip() or None
    if problem is not None:
        raise Refused(f"{path} does not run: {problem}; remedy: {_BLOCKERS}")
    is_enforcing = (system.try_call(files.read_text, "/sys/fs/selinux/enforce", 64) or "").strip() == "1"
    label = (system.try_call(os.getxattr, path, "security.selinux") or b"").decode("utf-8", "replace")
    if is_enforcing and (found := [*label.split(":"), "", "", ""][2]) in _NO_PROGRAM_TYPES:
        remedy = f"semanage fcontext -a -t bin_t {path} && restorecon {path}"
        raise Refused(f"SELinux: {path} has type {found}, which runtimes may not start; remedy: {remedy}")


# --- The removal
#
# The hooks of a container are fixed when it is created, so live containers, and a base_runtime_spec of containerd, go
# on calling the program, and some runtimes fail without it. So no removal ever unlinks its path. The JSON goes first,
# then all keys are ended, and then a stub that does nothing takes the program's place until the next boot, when no
# container can name it. A container whose creation began before the JSON went may begin a key after the others have
# ended. So the stub comes at once after that; what is begun in between is left until the next boot.


class Removal(NamedTuple):
    """The steps taken, the keys that could not be ended, and what else was left, in lines that say why."""

    taken: Taken
    unfinished: list[str]
    left: list[str]


def uninstall(places: Places, options: Options, *, force: bool, dry_run: bool) -> Removal:
    """Uninstall. Raises Refused, HookError."""
    refuse_others(places, force=force)
    if not places.top and os.path.isdir(options.run_dir) and not procfs.in_host_pid_namespace():
        # In another pid namespace groups look empty that are not.
        raise HookError(Reason.DENIED, procfs.NOT_HOST_PIDS, hint=procfs.PID_HINT)
    at, remains = places.at, Remains([], [])
    with steps.lock_directories(at(places.program_dir), at(places.hooks_dir)):
        foreign = [at(path) for path in places.files() if places.is_foreign(path)]

        def take(planned: list[Step]) -> Taken:
            return steps.take_steps([step for step in planned if step.what not in foreign], dry_run=dry_run)

        taken = take([remove_file(at(places.json(target))) for target in TARGETS])
        taken += take(_plan_end_of_services(places))
        if not places.top and system.try_call(reconcile.has_keys, options) is not False:
            try:
                remains = remains if dry_run else reconcile.end_all_keys(options)
            except (HookError, OSError) as error:
                remains = Remains([str(explain(error))], [])
            taken.append((Step("end", "all keys", lambda: None), "; ".join(remains.unfinished) or None))
        taken += take(_plan_rest(places, is_finished=not remains.unfinished))
    left = [f"{path} was not installed by {NAME}" for path in foreign]
    if files.list_if_there(at(places.log_dir)):
        left.append(f"{at(places.log_dir)}, the history of what containers have used")
    return Removal(taken, remains.unfinished, left + remains.left)


def _plan_end_of_services(places: Places) -> list[Step]:
    here = not places.top and programs.has_systemd()
    active = (places.timer, places.watch, places.textfile_timer, places.metrics_service)
    units = [os.path.basename(path) for path in active if here and os.path.exists(path)]
    logrotate = [] if places.is_foreign(places.logrotate) else [places.logrotate]
    return [
        # Disable the units while they exist, so that systemd removes its links to them.
        *([run_command("systemctl", "disable", "--now", *units)] if units else []),
        *(remove_file(places.at(path)) for path in (*places.units, places.tmpfiles, *logrotate)),
        *([run_command("systemctl", "daemon-reload")] if units else []),
    ]


def _plan_rest(places: Places, *, is_finished: bool) -> list[Step]:
    """Return the steps after the end of the keys.

    If a key is left, the program stays for another uninstall, or until the next boot.
    """
    program = places.at(places.program)
    is_ours = os.path.lexists(program) and not places.is_foreign(places.program)
    line = [plan_stub_file(places)] if is_ours else []
    if not is_finished:
        return line
    return [
        steps.remove_directory(places.at(places.log_dir)),
        remove_file(places.at(places.link)),
        plan_stub(program) if is_ours else remove_file(program),  # of a killed step
        *line,
        remove_file(places.at(places.owner)),
    ]


def plan_stub(program: str) -> Step:
    """Put the stub into the place of the program, in one step."""
    return write_file(program, STUB, 0o755)._replace(verb="stub")


def plan_stub_file(places: Places) -> Step:
    """Let the next boot remove what is at the program's path. `install` removes this file first."""
    text = "".join(f"r! {path}\n" for path in (places.program, places.stub_tmpfiles))
    return write_file(places.at(places.stub_tmpfiles), text.encode())


def format_removal(removal: Removal) -> list[str]:
    """Return a line for each thing that was left, and why."""
    lines = [f"left: {line}" for line in removal.left]
    others = [name for name in RUNTIMES if name not in ("crio", "podman")]
    if any(step.verb == "stub" for step, _ in removal.taken) and any(map(programs.find_program, others)):
        lines.append("if a base_runtime_spec of containerd names the program, remove that before the next boot")
    if removal.unfinished:
        lines += [f"kept: {line}" for line in removal.unfinished]
        lines.append("run uninstall again: until then, or until the next boot, the program and these records stay")
    return lines


# --- containerd: the hook in a base_runtime_spec

_STAGES = ("createRuntime", "poststop")
# What `ctr oci spec` prints. containerd drops it from its own specification (containerd/cri#515) but not from a
# base_runtime_spec, where it would limit every container to 1024 open files.
_RLIMITS_OF_CTR = [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}]


def add_hook(spec: object, hook: dict[str, Any]) -> dict[str, Any]:
    """Return a specification from `ctr oci spec` with this hook at both stages. Raises ValueError for an invalid one.

    Our hook goes first, because runc ends a stage at the first hook that fails. It replaces our earlier hook. The
    limit on open files stays as it is without a base_runtime_spec.
    Source: config.md of the OCI runtime specification (hooks), and containerd's docs/cri/config.md (base_runtime_spec).
    """
    if not isinstance(spec, dict) or not isinstance(spec.get("ociVersion"), str):
        raise ValueError("stdin is not an OCI runtime specification (ociVersion: missing)")
    try:
        hooksd.list_hooks("stdin", spec)
    except files.Unreadable as error:
        raise ValueError(str(error)) from None
    hooks = dict(spec.get("hooks") or {})
    for stage in _STAGES:
        others = [other for other in hooks.get(stage) or [] if os.path.basename(other["path"]) != hooksd.PROGRAM]
        hooks[stage] = [hook, *others]
    changed = {**spec, "hooks": hooks}
    process = spec.get("process")
    if isinstance(process, dict) and process.get("rlimits") == _RLIMITS_OF_CTR:
        changed["process"] = {name: value for name, value in process.items() if name != "rlimits"}
    return changed
