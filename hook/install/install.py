# SPDX-License-Identifier: Apache-2.0
"""Installs the running .pyz, its hooks.d files and its timer, and removes them in the reverse order.

The order matters. Readers of hooks.d use a file as soon as it exists, and containers fail if the hook does not start.
So the program comes first and is tried, and the JSON comes last. An install that is killed before that affects no
container, and the next install completes it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

from hook import procfs, system
from hook.errors import HookError, Reason
from hook.install import steps
from hook.install.steps import Refused, Step, Taken, remove_file, run_command, write_file
from hook.models import Options
from hook.node import engines, files, hooksd, paths, programs
from hook.node.paths import CONF_MARK, NAME, STUB, TARGETS, Places, PyzFile
from hook.reconcile import run as reconcile
from hook.reconcile.run import Remains

_DEFAULTS = Options()
_HISTORY = "--history="
_CONTAINERDS = ("containerd", "k3s", "rke2")
# The characters without a special meaning in JSON, in a unit and in an EnvironmentFile.
_PLAIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:+=,@~^-"
_NOBODY = '{"ociVersion":"1.0","id":"resctrl-mon-hook-install","status":"stopped","bundle":"/"}'


class Wanted(NamedTuple):
    """The arguments of an installation. `words`: the hook's options; `adopt`: of reconcile; `python`: None: the .pyz's.

    `watch`: start `watch`. `force`: replace files of a package, of the Helm chart or of a MachineConfig, too.
    """

    shipped: PyzFile
    places: Places
    targets: tuple[str, ...]
    words: tuple[str, ...] = ()
    options: Options = _DEFAULTS
    adopt: bool = False
    python: str | None = None
    force: bool = False
    watch: bool = False

    @property
    def interpreter(self) -> str:
        return self.python or self.shipped.python

    @property
    def program(self) -> bytes:
        return self.shipped.with_python(self.interpreter)


def install(wanted: Wanted, *, dry_run: bool, follow: Callable[[str], None] | None = None) -> tuple[Taken, list[str]]:
    """Install. Returns the steps taken, and remarks for the operator. `follow`: see take_steps. Raises Refused."""
    problems, remarks = find_problems(wanted)
    if problems:
        raise Refused(*problems)
    if not (wanted.force or wanted.places.top):
        steps.refuse_others(wanted.places)
    directory = wanted.places.at(wanted.places.program_dir)
    if not dry_run:
        try:
            steps.make_directories(directory)
        except OSError as error:
            remedy = "run as root, or use --prefix=DIR"
            raise Refused(f"cannot make {directory}: {error.strerror}; remedy: {remedy}") from error
    with steps.lock_directory(directory):
        return steps.take_steps(plan_install(wanted), dry_run=dry_run, follow=follow), remarks


# --- The steps


def plan_install(wanted: Wanted) -> list[Step]:
    """All steps, including those that are already done."""
    places = wanted.places
    at = places.at
    hooks = {target: make_hook_file(wanted, target) for target in wanted.targets}
    words = [json.loads(text)["hook"]["args"][2:] for text in hooks.values()]
    histories = [word for of_target in words for word in of_target if word.startswith(_HISTORY)]
    conf = _make_conf(wanted, words[0], histories).encode()
    here: list[Step] = []
    if not places.top:
        here = steps.plan_bytecode(places.program, wanted.shipped, find_python(wanted.interpreter))
        here.append(Step("try", places.program, lambda: try_program(places.program)))
    return [
        # Remove an unwanted JSON first, as in uninstall.
        *(remove_file(at(places.json(target))) for target in TARGETS if target not in wanted.targets),
        remove_file(at(places.stub_tmpfiles)),  # before the program: it names what the next boot removes
        # An upgrade tries the new program before it replaces the old one. A hook that starts meanwhile runs either.
        # No hooks.d file calls a first installation yet, so that one is tried in place.
        write_file(at(places.program), wanted.program, 0o755, None if places.top else try_program),
        *here,
        steps.make_link(at(places.link), places.link_target),
        # The timer before the JSON: a container with the hook needs reconcile.
        *(write_file(at(unit), _adapt_file(wanted, "packaging/systemd/", unit).encode()) for unit in places.units),
        write_file(at(places.tmpfiles), _adapt_file(wanted, "packaging/tmpfiles.d/", places.tmpfiles).encode()),
        # A file that the administrator wrote is kept.
        *([] if places.is_foreign(places.conf) else [write_file(at(places.conf), conf)]),
        *_plan_activation(wanted),
        *_plan_history(wanted, [word[len(_HISTORY) :] for word in histories]),
        remove_file(at(places.owner)),  # with --force: the former owner has lost these files
        *(write_file(at(places.json(target)), text.encode()) for target, text in hooks.items()),
    ]


def make_hook_file(wanted: Wanted, target: str) -> str:
    """The hooks.d file for a target."""
    places = wanted.places
    text = wanted.shipped.text(f"oci-hooks/{os.path.basename(places.json(target))}")
    shipped = json.loads(text)["hook"]
    given = {word.partition("=")[0] for word in wanted.words}
    kept = [word for word in shipped["args"] if word.partition("=")[0] not in given]
    text = text.replace(json.dumps(shipped["path"]), json.dumps(places.program))
    return text.replace(json.dumps(shipped["args"]), json.dumps([*kept, *wanted.words]))


def _make_conf(wanted: Wanted, words: list[str], histories: list[str]) -> str:
    """The file of options for the timer's reconcile: those of the hook, for Kubernetes if it is a target (`words`).

    They apply to containers without a poststop. A poststop itself records how long the group lingers. reconcile ignores
    --containers. `histories`: the options --history of all targets, since it ends what hooks of each have begun.
    """
    kept = [word for word in words if not word.startswith("--containers=")]
    kept += [] if any(word in kept for word in histories) else histories
    kept += ["--adopt"] if wanted.adopt else []
    remark = "which overwrites it: give the options to that, or remove this line."
    return f"{CONF_MARK}, {remark}\nOPTIONS={' '.join(kept)}\n"


def _plan_history(wanted: Wanted, files: list[str]) -> list[Step]:
    """The directories of the histories, which no hook makes, and what rotates the usual one."""
    places = wanted.places
    directories = sorted({os.path.dirname(file) for file in files if file})
    here = [steps.make_directory(places.at(path), 0o750) for path in directories]
    if places.log_dir in directories and not os.path.lexists(places.at(places.logrotate)):
        text = f"{CONF_MARK}; later ones keep it as it is\n" + wanted.shipped.text(f"packaging/logrotate/{NAME}")
        here.append(write_file(places.at(places.logrotate), text.encode()))
    return here


def _adapt_file(wanted: Wanted, directory: str, path: str) -> str:
    """A unit or the file for tmpfiles.d, with the paths of this installation."""
    text = wanted.shipped.text(directory + os.path.basename(path))
    usual, options = _DEFAULTS, wanted.options
    changes = {
        f"={Places().link} ": f"={wanted.places.link} ",
        f"={usual.resctrl_root}": f"={options.resctrl_root}",
        f" {usual.resctrl_root}/mon_data\n": f" {options.resctrl_root}/mon_data\n",
    }
    others = []
    if options.run_dir != usual.run_dir:
        changes |= {f"\n{kind} {usual.run_dir}": f"\n{kind} {options.run_dir}" for kind in "dL"}  # of tmpfiles.d
        others.append(options.run_dir)
    if options.history and os.path.dirname(options.history) != wanted.places.log_dir:
        others.append(os.path.dirname(options.history))
    writable = f"ReadWritePaths={options.resctrl_root}\n"
    changes[writable] = writable + "".join(f"ReadWritePaths=-{path}\n" for path in others)
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


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


def find_problems(wanted: Wanted) -> tuple[list[str], list[str]]:
    """The problems that prevent an installation, each with its remedy, and remarks. Changes nothing."""
    if problems := _check_words(wanted):
        return problems, []
    places = wanted.places
    foreign = [places.at(path) for path in places.files() if path != places.conf and places.is_foreign(path)]
    problems = [f"{path} exists and was not installed by {NAME}; remedy: move it away" for path in foreign]
    problems += _find_other_callers(places)
    if not places.top:
        problems += _find_read_only(places)
        try:
            find_python(wanted.interpreter)
        except Refused as error:
            problems += error.problems
    return problems, _list_remarks(wanted)


def _check_words(wanted: Wanted) -> list[str]:
    problems = [
        f"{word!r} has characters that a systemd unit cannot hold; remedy: use letters, digits and _./:+=,@~^-"
        for word in (*wanted.words, wanted.places.prefix, wanted.places.hooks_dir)
        if word.strip(_PLAIN)
    ]
    try:
        wanted.shipped.with_python(wanted.interpreter)
    except ValueError as error:
        problems.append(f"--python: {error}; remedy: use a link with a short name")
    return problems


def find_python(path: str) -> programs.Interpreter:
    """Run the Python at a path. Raises Refused if the program cannot run on it."""
    found = programs.ask_interpreter(path)
    if isinstance(found, str):
        raise Refused(f"{found}; remedy: install it, or name another one with --python=PATH")
    return found


def _find_other_callers(places: Places) -> list[str]:
    """Problems with files in other directories that call the hook: readers of both would use both, or the wrong one."""
    ours = os.path.realpath(places.at(places.hooks_dir))
    others = [directory for directory in hooksd.READERS if os.path.realpath(places.at(directory)) != ours]
    return [
        f"{entry.path} already calls the hook; remedy: remove it, or its package, or uninstall --hooks-dir={directory}"
        for directory in others
        for entry in hooksd.read_directory(places.at(directory))
        if entry.own is not None
    ]


def _find_read_only(places: Places) -> list[str]:
    problems = []
    for path in sorted({os.path.dirname(it) for it in places.files()}):
        there = path
        while not os.path.isdir(there):
            there = os.path.dirname(there)
        if os.statvfs(there).f_flag & os.ST_RDONLY:
            problems.append(f"{path} is on a read-only file system; remedy: use --prefix=/usr/local, --hooks-dir=DIR")
    return problems


def _list_remarks(wanted: Wanted) -> list[str]:
    places = wanted.places
    found = []
    for it in (engines.PODMAN, engines.CRIO):
        # Others than CRI-O start the containers of Kubernetes, too.
        is_used = it.target in wanted.targets and (
            it is engines.PODMAN or programs.find_program(it.program, places.top)
        )
        reads = system.try_call(it.read_hooks_dirs, places.top) or ["unclear directories (see doctor)"]
        if is_used and places.hooks_dir not in reads:
            found.append(f"{it.name} reads {', '.join(reads)}, not {places.hooks_dir}: add that to its hooks_dir")
    if places.is_foreign(places.conf):
        found.append(f"keeping {places.at(places.conf)}, which the administrator wrote")
    if not places.top and not programs.has_systemd():
        found.append(f"systemd is not running: run `{NAME} reconcile` every minute, for example from cron")
    if wanted.shipped.needs_new_kernel(wanted.interpreter):
        found.append(f"with {wanted.interpreter} the first line is too long for kernels before Linux 5.1")
    return found


# --- Whether the program works


def try_program(path: str) -> None:
    """Run the program like a runtime. Raises Refused if it fails, since containers would fail, too."""
    version = programs.run_program([path, "--version"])
    problem = version.problem or (None if version.output.startswith(f"{NAME} ") else "it does not print its version")
    if problem is None:
        with tempfile.TemporaryDirectory(prefix=NAME) as scratch:
            ended = programs.run_program([path, "hook", f"--run-dir={scratch}/run"], stdin=_NOBODY)
        problem = ended.problem or ended.error.strip() or None
    if problem is not None:
        raise Refused(f"{path} does not run: {problem}; remedy: {paths.list_blockers(path) or 'see the system log'}")
    if wrong := paths.find_label_problem(path):
        raise Refused(wrong)


# --- The removal
#
# The hooks of a container are fixed when it is created, so live containers, and a base_runtime_spec of containerd, go
# on calling the program, and some runtimes fail without it. So no removal ever unlinks its path. The JSON goes first,
# then all keys are ended, and then a stub that does nothing takes the program's place until the next boot, when no
# container can name it. A container whose creation began before the JSON went may begin a key after the others have
# ended. So the stub comes at once after that; what is begun in between is left until the next boot.


class Removal(NamedTuple):
    """The steps taken, and what the end of the keys left. `strange`: files of others, which were kept.

    `history`: the directory of the history, if it was kept; else empty.
    """

    taken: Taken
    remains: Remains
    strange: list[str]
    history: str


def uninstall(places: Places, options: Options, *, force: bool, dry_run: bool) -> Removal:
    """Uninstall. Raises Refused, HookError."""
    if not (force or places.top):
        steps.refuse_others(places)
    if not places.top and os.path.isdir(options.run_dir) and not procfs.in_host_pid_namespace():
        # In another pid namespace groups look empty that are not.
        raise HookError(Reason.DENIED, procfs.NOT_HOST_PIDS, hint=procfs.PID_HINT)
    remains = Remains([], [])

    def end() -> str | None:
        nonlocal remains
        try:
            remains = reconcile.end_all_keys(options)
        except (HookError, OSError) as error:
            remains = Remains([str(error)], [])
        return "; ".join(remains.unfinished) or None

    with steps.lock_directory(places.at(places.program_dir)):
        strange = [places.at(path) for path in places.files() if places.is_foreign(path)]

        def take(planned: list[Step]) -> Taken:
            return steps.take_steps([it for it in planned if it.what not in strange], dry_run=dry_run)

        taken = take([remove_file(places.at(places.json(target))) for target in TARGETS])
        taken += take(_plan_end_of_services(places))
        if not places.top:
            taken += take([Step("end", "all keys", end, lambda: system.try_call(reconcile.has_keys, options) is False)])
        taken += take(_plan_rest(places, is_finished=not remains.unfinished))
        history = places.at(places.log_dir) if _has_history(places) else ""
    return Removal(taken, remains, strange, history)


def _plan_end_of_services(places: Places) -> list[Step]:
    here = not places.top and programs.has_systemd()
    active = (places.timer, places.watch, places.textfile_timer, places.metrics_service)
    units = [os.path.basename(path) for path in active if here and os.path.exists(path)]
    return [
        # Disable the units while they exist, so that systemd removes its links to them.
        *([run_command("systemctl", "disable", "--now", *units)] if units else []),
        *(remove_file(places.at(path)) for path in (*places.units, places.tmpfiles, places.conf)),
        *([] if places.is_foreign(places.logrotate) else [remove_file(places.at(places.logrotate))]),
        *([run_command("systemctl", "daemon-reload")] if units else []),
    ]


def _plan_rest(places: Places, *, is_finished: bool) -> list[Step]:
    """The steps after the end of the keys. Not `is_finished`: the program stays for another uninstall, until a boot."""
    program = places.at(places.program)
    is_ours = os.path.lexists(program) and not places.is_foreign(places.program)
    line = [plan_stub_file(places)] if is_ours else []
    if not is_finished:
        return line
    return [
        *([] if _has_history(places) else [steps.remove_directory(places.at(places.log_dir))]),
        *([steps.remove_directory(places.at(places.conf_dir))] if _has_only_our_conf(places) else []),
        remove_file(places.at(places.link)),
        plan_stub(program) if is_ours else steps.remove_unfinished(program),
        *line,
        *map(remove_file, steps.list_bytecode(program)),
        remove_file(places.at(places.owner)),
    ]


def plan_stub(program: str) -> Step:
    """Put the stub into the place of the program, in one step."""
    return write_file(program, STUB, 0o755)._replace(verb="stub")


def plan_stub_file(places: Places) -> Step:
    """Let the next boot remove what is at the program's path. `install` removes this file first."""
    text = "".join(f"r! {path}\n" for path in (places.program, places.stub_tmpfiles))
    return write_file(places.at(places.stub_tmpfiles), text.encode())


def _has_only_our_conf(places: Places) -> bool:
    """Whether the directory of the file of options has no other file."""
    directory = places.at(places.conf_dir)
    return {*files.list_if_there(directory)} <= {os.path.basename(places.conf)} and not places.is_foreign(places.conf)


def _has_history(places: Places) -> bool:
    """Whether the directory of the history has a file. The history is the administrator's to remove."""
    return bool(files.list_if_there(places.at(places.log_dir)))


def format_removal(removal: Removal) -> list[str]:
    """A line for each thing that was kept, and why."""
    lines = [f"left: {path} was not installed by {NAME}" for path in removal.strange]
    lines += [f"left: {removal.history}, the history of what containers have used"] if removal.history else []
    lines += [f"left: {line}" for line in removal.remains.left]
    if any(step.verb == "stub" for step, _ in removal.taken) and any(map(programs.find_program, _CONTAINERDS)):
        lines.append("if a base_runtime_spec of containerd names the program, remove that before the next boot")
    if removal.remains.unfinished:
        lines += [f"kept: {line}" for line in removal.remains.unfinished]
        lines.append("run uninstall again: until then, or until the next boot, the program and these records stay")
    return lines


def removal_to_json(removal: Removal) -> dict[str, Any]:
    """The object that `uninstall --json` prints."""
    return {
        "unfinished": removal.remains.unfinished,
        "left": [*removal.strange, *removal.remains.left],
        "history": removal.history or None,
    }


# --- containerd: the hook in a base_runtime_spec

_STAGES = ("createRuntime", "poststop")
# What `ctr oci spec` prints. containerd drops it from its own specification (containerd/cri#515) but not from a
# base_runtime_spec, where it would limit every container to 1024 open files.
_RLIMITS_OF_CTR = [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}]


def add_hook(spec: object, hook: dict[str, Any]) -> dict[str, Any]:
    """A specification from `ctr oci spec` with this hook at both stages. Raises ValueError for an invalid one.

    Our hook goes first, because runc ends a stage at the first hook that fails. It replaces an earlier one of ours. The
    limit on open files stays as it is without a base_runtime_spec.
    Source: config.md of the OCI runtime specification (hooks), and containerd's docs/cri/config.md (base_runtime_spec).
    """
    if not isinstance(spec, dict) or not isinstance(spec.get("ociVersion"), str):
        raise ValueError("stdin is not an OCI runtime specification (ociVersion: missing)")
    hooks = spec.get("hooks") or {}
    if not isinstance(hooks, dict):
        raise ValueError("hooks: not an object")
    changed = {**spec, "hooks": {**hooks, **{stage: [hook, *_list_others(hooks, stage, hook)] for stage in _STAGES}}}
    process = spec.get("process")
    if isinstance(process, dict) and process.get("rlimits") == _RLIMITS_OF_CTR:
        changed["process"] = {name: value for name, value in process.items() if name != "rlimits"}
    return changed


def _list_others(hooks: dict[str, Any], stage: str, hook: dict[str, Any]) -> list[Any]:
    found = hooks.get(stage) or []
    if not isinstance(found, list) or not all(isinstance(it, dict) and isinstance(it.get("path"), str) for it in found):
        raise ValueError(f"hooks.{stage}: not a list of hooks with a path")
    return [it for it in found if os.path.basename(it["path"]) != os.path.basename(hook["path"])]
