"""Puts the .pyz that runs, its hooks.d files and its timer in place: what is to be where, whether it may, and that.

The order is the point. Readers of hooks.d take a file as soon as it is there, and a hook that does not start stops
containers: so the program comes first and is tried, and the JSON comes last. Killed before that, nobody is affected,
and to install again goes on from there.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass

from hook.base.models import Options
from hook.host import hooksd, machine, runtime_config
from hook.host.machine import KUBERNETES, PODMAN, TARGETS, Interpreter
from hook.host.paths import CONF_MARK, NAME, PROGRAM, Places
from hook.install import file_steps, node_bytecode, owner
from hook.install.file_steps import Link, Outcome, Refused, Remove, Run, Step, Try, Write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hook.host.pyz_file import Shipped

LEFT = f"{NAME}-left"
LEFT_TIMER = f"{LEFT}.timer"
_DEFAULTS = Options()
# What neither JSON nor a unit nor the line of an EnvironmentFile would take for anything but itself.
_PLAIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:+=,@~^-"
_NOBODY = '{"ociVersion":"1.0","id":"resctrl-mon-hook-install","status":"stopped","bundle":"/"}'


@dataclass(frozen=True)
class Wanted:
    """What is to be installed. `words`: options of the hook; `adopt`: see reconcile; `python`: None as shipped.

    `force`: also over the files of a package, of the Helm chart or of a MachineConfig.
    """

    shipped: Shipped
    places: Places
    targets: tuple[str, ...]
    words: tuple[str, ...] = ()
    options: Options = _DEFAULTS
    adopt: bool = False
    python: str | None = None
    force: bool = False

    @property
    def interpreter(self) -> str:
        return self.python or self.shipped.python

    @property
    def program(self) -> bytes:
        return self.shipped.with_python(self.interpreter)


def run(wanted: Wanted, *, dry_run: bool) -> tuple[list[Outcome], list[str]]:
    """Install; returns what was done and what is worth knowing. Raises Refused."""
    problems, remarks = look(wanted)
    if problems:
        raise Refused(*problems)
    if not (wanted.force or wanted.places.top):
        owner.refuse_others(wanted.places)
    directory = wanted.places.at(wanted.places.program_dir)
    if not dry_run:
        try:
            file_steps.make_directory(directory)
        except OSError as error:
            raise Refused(f"{directory} cannot be made: {error.strerror}; remedy: as root, or --prefix=DIR") from error
    with file_steps.alone(directory):
        return file_steps.take(plan(wanted), dry_run=dry_run), remarks


# --- What is to be where


def plan(wanted: Wanted) -> list[Step]:
    """The steps. What is in place already is a step too, and done."""
    places = wanted.places
    at = places.at
    unwanted = [target for target in TARGETS if target not in wanted.targets]
    here: list[Step] = []
    if not places.top:
        here = [*_bytecode(wanted), Try(places.program, prove)]
    return [
        # A JSON that is not wanted any more goes first, as in uninstall.
        *(Remove(at(places.json(target))) for target in unwanted),
        # A program that is called already is replaced by one that was tried: a hook that starts meanwhile gets the old
        # one or the new one. A new one is called by nobody yet.
        Write(at(places.program), wanted.program, 0o755, None if places.top else prove),
        *here,
        Link(at(places.link), places.link_target),
        # The timer before the JSON: once a container is hooked, there is somebody to put right what the hook cannot.
        Write(at(places.service), _fitted(wanted, "packaging/systemd/", places.service).encode()),
        Write(at(places.timer), _fitted(wanted, "packaging/systemd/", places.timer).encode()),
        Write(at(places.tmpfiles), _fitted(wanted, "packaging/tmpfiles.d/", places.tmpfiles).encode()),
        *([] if _has_own_conf(places) else [Write(at(places.conf), conf(wanted).encode())]),
        *_activation(places),
        Remove(at(places.chart_mark)),  # with --force: from now on it is not the chart's
        *(Write(at(places.json(target)), hook_file(wanted, target).encode()) for target in wanted.targets),
    ]


def hook_file(wanted: Wanted, target: str) -> str:
    """The hooks.d file for a target."""
    places = wanted.places
    text = wanted.shipped.text(f"oci-hooks/{os.path.basename(places.json(target))}")
    shipped = json.loads(text)["hook"]
    text = text.replace(json.dumps(shipped["path"]), json.dumps(places.program))
    return text.replace(json.dumps(shipped["args"]), json.dumps(_merged(shipped["args"], wanted.words)))


def conf(wanted: Wanted) -> str:
    """The options of the timer's reconcile: those of the hook that does its work, which is the pods' if there are any.

    Each container's poststop has noted how long its group is to linger; it is for what never had one that they count.
    """
    _name, _verb, *words = json.loads(hook_file(wanted, wanted.targets[0]))["hook"]["args"]
    words = [word for word in words if not word.startswith("--containers=")]  # reconcile is for all of them
    words += ["--adopt"] if wanted.adopt else []
    remark = "which makes it anew: give the options to that, or remove this line."
    return f"{CONF_MARK}, {remark}\nOPTIONS={' '.join(words)}\n"


def _merged(shipped: Sequence[str], words: Sequence[str]) -> list[str]:
    given = {word.partition("=")[0] for word in words}
    return [*(word for word in shipped if word.partition("=")[0] not in given), *words]


def _fitted(wanted: Wanted, directory: str, path: str) -> str:
    """A unit, or tmpfiles.d's file, as it is shipped, but for other places than the usual ones."""
    text = wanted.shipped.text(directory + os.path.basename(path))
    usual, options = Places(), wanted.options
    text = text.replace(f"={usual.link} ", f"={wanted.places.link} ")
    text = text.replace(f"={_DEFAULTS.resctrl_root}", f"={options.resctrl_root}")
    text = text.replace(f" {_DEFAULTS.resctrl_root}/mon_data\n", f" {options.resctrl_root}/mon_data\n")
    if options.run_dir != _DEFAULTS.run_dir:
        for kind in "dL":  # of tmpfiles.d
            text = text.replace(f"\n{kind} {_DEFAULTS.run_dir}", f"\n{kind} {options.run_dir}")
        writable = f"ReadWritePaths={options.resctrl_root}\n"
        text = text.replace(writable, f"{writable}ReadWritePaths=-{options.run_dir}\n")
    return text


def _bytecode(wanted: Wanted) -> list[Step]:
    """The steps of the node's own bytecode, by the Python that the program is started with."""
    return node_bytecode.steps(wanted.places.program, wanted.shipped, find_python(wanted.interpreter))


def _has_own_conf(places: Places) -> bool:
    """Whether an administrator has written the options of reconcile down: then they stay."""
    return places.is_strange(places.conf)


def _activation(places: Places) -> list[Step]:
    if places.top or not machine.has_systemd():
        return []
    return [
        Run(("systemd-tmpfiles", "--create", places.tmpfiles)),
        Run(("systemctl", "daemon-reload")),
        Run(("systemctl", "enable", "--now", os.path.basename(places.timer))),
        *stop_left_timer(),
    ]


def stop_left_timer() -> list[Step]:
    """The timer that an uninstall left with the program ends: see uninstall.leave_timer."""
    return [Run(("systemctl", "stop", LEFT_TIMER))] if machine.has_transient(LEFT_TIMER) else []


# --- Whether it may


def look(wanted: Wanted) -> tuple[list[str], list[str]]:
    """What would break, each with its remedy, and what is only worth knowing. Nothing is changed."""
    if problems := _unfit(wanted):
        return problems, []
    problems = [*_in_the_way(wanted.places), *_elsewhere(wanted.places)]
    remarks = _remarks(wanted)
    if not wanted.places.top:
        problems += _read_only(wanted.places)
        try:
            find_python(wanted.interpreter)
        except Refused as error:
            problems += error.problems
    return problems, remarks


def _unfit(wanted: Wanted) -> list[str]:
    words = [*wanted.words, wanted.places.prefix, wanted.places.hooks_dir]
    odd = [word for word in words if word.strip(_PLAIN)]
    problems = [f"systemd would not take {word!r} as one plain word; remedy: name it without" for word in odd]
    try:
        wanted.shipped.with_python(wanted.interpreter)
    except ValueError as error:
        problems.append(f"--python: {error}; remedy: a link with a short name")
    return problems


def find_python(path: str) -> Interpreter:
    """The Python that starts the program. Raises Refused if it is none that will do."""
    found = machine.interpreter(path)
    if not isinstance(found, Interpreter):
        raise Refused(f"{found}; remedy: install it, or name another one by --python=PATH")
    if found.version < machine.OLDEST:
        version, oldest = (".".join(map(str, it)) for it in (found.version, machine.OLDEST))
        raise Refused(f"{path} is Python {version}, and {oldest} is the oldest that will do; remedy: --python=PATH")
    return found


def _in_the_way(places: Places) -> list[str]:
    strange = [path for path in places.files() if path != places.conf and places.is_strange(path)]
    return [f"{places.at(path)} is not of {NAME}; remedy: move it away" for path in strange]


def _elsewhere(places: Places) -> list[str]:
    """Files that have the hook called from another directory: readers of both would take both, or the wrong one."""
    problems = []
    for directory in hooksd.READERS:
        if os.path.realpath(places.at(directory)) == os.path.realpath(places.at(places.hooks_dir)):
            continue
        for entry in hooksd.read_directory(places.at(directory)):
            if entry.calls(PROGRAM):
                remedy = f"remove it, or uninstall --hooks-dir={directory}; if a package has it, remove that"
                problems.append(f"{entry.path} has the hook called already; remedy: {remedy}")
    return problems


def _read_only(places: Places) -> list[str]:
    problems = []
    for path in sorted({os.path.dirname(it) for it in places.files()}):
        there = path
        while not os.path.isdir(there):
            there = os.path.dirname(there)
        if os.statvfs(there).f_flag & os.ST_RDONLY:
            problems.append(f"{path} is on a read-only file system; remedy: --prefix=/usr/local, --hooks-dir=DIR")
    return problems


def _remarks(wanted: Wanted) -> list[str]:
    places = wanted.places
    found = _unread(places, wanted.targets)
    if _has_own_conf(places):
        found.append(f"{places.at(places.conf)} is the administrator's and stays as it is")
    if not places.top and not machine.has_systemd():
        found.append(f"systemd does not run here: have `{NAME} reconcile` called once a minute by other means")
    if not wanted.shipped.needs_new_kernel(wanted.interpreter):
        return found
    return [*found, f"with {wanted.interpreter} the first line is too long for kernels before Linux 5.1"]


def _unread(places: Places, targets: Sequence[str]) -> list[str]:
    """Who does not read the directory that the files go to, as far as their configurations tell."""
    reads = {"Podman": runtime_config.of_podman(places.top)} if PODMAN in targets else {}
    if KUBERNETES in targets and machine.program("crio", places.top):
        reads["CRI-O"] = runtime_config.of_crio(places.top)
    return [
        f"{who} reads {', '.join(directories)}, not {places.hooks_dir}: name that in its hooks_dir, too"
        for who, directories in reads.items()
        if places.hooks_dir not in directories
    ]


# --- That it works


def prove(path: str) -> None:
    """Run a program as a runtime would. Raises Refused if it does not start, or would fail a container."""
    version = machine.run([path, "--version"])
    problem = version.problem or (None if version.output.startswith(f"{NAME} ") else "it does not tell its version")
    if problem is None:
        with tempfile.TemporaryDirectory(prefix=NAME) as scratch:
            ended = machine.run([path, "hook", f"--run-dir={scratch}/run"], stdin=_NOBODY)
        problem = ended.problem or ended.error.strip() or None
    if problem is not None:
        raise Refused(f"{path} does not run: {problem}; remedy: {machine.why_forbidden(path) or 'see the system log'}")
    if wrong := machine.mislabelled(path):
        raise Refused(wrong)
