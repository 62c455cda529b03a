# SPDX-License-Identifier: Apache-2.0
"""Installs the running program, its hooks.d files and its timer,
and removes them in the reverse order.

The order matters. Readers of hooks.d use a file as soon as it exists, and containers fail if the
hook does not start. So the program comes first and is tried, and the JSON comes last. An install
that is killed before that affects no container, and the next install completes it.

Each step replaces or removes one file at once and durably. A new file is first written under a
temporary name, which readers of hooks.d ignore (they read *.json only). After a crash the earlier
steps are done, and no later one is begun. --dry-run prints the steps.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shlex
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from hook import formats, host, system
from hook.errors import HookError, Reason
from hook.models import Options
from hook.node import files, hooksd, programs
from hook.node.paths import (
    CONTAINERDS,
    INSTALL,
    JOBS_MARK,
    KUBERNETES,
    NAME,
    STUB,
    TARGETS,
    Places,
    find_origin,
)
from hook.reconcile import run as reconcile
from hook.words import explain

_DOCSTRING = b'"""resctrl-mon-hook:'
DIGEST = "sha256"
"""In the zip of the ELF file: the SHA-256 of what is before the zip."""
# The characters without a special meaning in a unit and in a file for tmpfiles.d.
_PLAIN = re.compile(r"[A-Za-z0-9_./:+=,@~^-]*")
_STOPPED = '{"ociVersion":"1.0","id":"resctrl-mon-hook-install","status":"stopped","bundle":"/"}'


# --- The program as a file: the .pyz, or the ELF file that brings its own Python


class Program:
    """The content of a file of this project.

    Raises ValueError for any other file, and for one that is damaged.
    """

    def __init__(self, path: str) -> None:
        self.data = files.read(path, hooksd.LARGEST)
        try:
            with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
                self._entries = {name: archive.read(name) for name in archive.namelist()}
                begin = min((entry.header_offset for entry in archive.infolist()), default=0)
        except zipfile.BadZipFile as error:
            raise ValueError(f"{path} is damaged, or no program of this project: {error}") from None
        if _DOCSTRING not in self._entries.get(hooksd.IN_PROGRAM, b""):
            raise ValueError(f"{path} is no program of resctrl-mon-hook")
        if not self.data.startswith(b"#!/") and self._entries.get(DIGEST) != digest(
            self.data[:begin]
        ):
            raise ValueError(
                f"{path} is damaged: what is before its zip has another digest than the zip names"
            )

    def text(self, name: str) -> str:
        """Return the text of a file of the repository in it."""
        return self._entries[name].decode()


def digest(data: bytes) -> bytes:
    """Return what the zip's entry DIGEST has for this data."""
    return hashlib.sha256(data).hexdigest().encode()


# --- Steps


class Refused(Exception):
    """The command was refused, or stopped. `problems` has the reasons, each with its remedy."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Step(NamedTuple):
    """One change, which `verb` and `what` describe."""

    verb: str
    what: str
    # makes the change; returns a problem that does not stop later steps,
    # or raises Refused or OSError, which do
    do: Callable[[], str | None]
    # returns whether the change is already in place
    is_done: Callable[[], bool] = lambda: False

    def __str__(self) -> str:
        return f"{self.verb} {self.what}"


Taken = list[tuple[Step, "str | None"]]
"""Steps that were taken, or are planned, each with the problem that it met."""


def write_file(
    path: str, content: bytes, mode: int = 0o644, check: Callable[[str], None] | None = None
) -> Step:
    """Write a file.

    Before it is in place, `check` gets its temporary path and may raise Refused.
    """

    def make(temporary: str) -> None:
        files.write_durably(temporary, content, mode)
        if check is not None:
            check(temporary)

    def is_right() -> bool:
        there = os.lstat(path).st_mode
        return (
            stat.S_ISREG(there)
            and stat.S_IMODE(there) == mode
            and files.read(path, len(content)) == content
        )

    return _replace("write", path, path, make, is_right)


def make_link(path: str, target: str) -> Step:
    """Make a symbolic link."""
    what, is_right = f"{path} -> {target}", lambda: os.readlink(path) == target
    return _replace("link", what, path, lambda temporary: os.symlink(target, temporary), is_right)


def _replace(
    verb: str, what: str, path: str, make: Callable[[str], None], is_right: Callable[[], bool]
) -> Step:
    """Make a file under its temporary name, and rename it.

    `is_right` says whether it is there, or raises OSError.
    """

    def do() -> None:
        make_directories(os.path.dirname(path))
        with files.replace_file(path, _name_temporary(path)) as temporary:
            make(temporary)

    return Step(
        verb,
        what,
        do,
        lambda: not os.path.lexists(_name_temporary(path)) and bool(system.try_call(is_right)),
    )


def remove_file(path: str) -> Step:
    """Remove a file or a link, and the temporary file of a step that was killed."""
    both = (path, _name_temporary(path))

    def do() -> None:
        for name in both:
            with suppress(FileNotFoundError):
                os.unlink(name)
                files.sync_directory(os.path.dirname(name))

    return Step("remove", path, do, lambda: not any(map(os.path.lexists, both)))


def make_directory(path: str, mode: int) -> Step:
    """Make a directory, and its parents. One that exists keeps its mode."""
    return Step("make", path, lambda: make_directories(path, mode), lambda: os.path.isdir(path))


def remove_directory(path: str) -> Step:
    """Remove a directory if it is empty."""

    def is_done() -> bool:
        return not os.path.isdir(path) or bool(files.list_if_there(path))

    return Step("remove", path, lambda: system.try_call(os.rmdir, path), is_done)


def run_command(*command: str) -> Step:
    """Run a program of the system. Its failure is reported and does not stop later steps."""
    return Step("run", shlex.join(command), lambda: programs.run_program(command).problem)


def take_steps(steps: Iterable[Step], *, dry_run: bool) -> Taken:
    """Take the steps that are not done yet, in this order.

    Raises Refused at the first that fails.
    """
    taken: Taken = []
    for step in steps:
        if step.is_done():
            continue
        try:
            taken.append((step, None if dry_run else step.do()))
        except OSError as error:
            remedy = (
                "the steps after it were not taken; remedy: run as root, or use --prefix=DIR if "
                "/usr is read-only"
            )
            raise Refused(f"cannot {step}: {error.strerror or error}; {remedy}") from error
    return taken


@contextmanager
def lock_directories(*directories: str) -> Iterator[None]:
    """Keep other installs and uninstalls out of these directories.

    No lock is taken of one that does not exist.
    """
    with ExitStack() as locks:
        for directory in dict.fromkeys(map(os.path.realpath, directories)):
            with suppress(FileNotFoundError):
                descriptor = files.open_to_lock(directory)
                locks.callback(os.close, descriptor)
                if not system.try_flock(descriptor):
                    raise Refused(
                        f"another install or uninstall is running in {directory}; remedy: wait "
                        "until it ends"
                    )
        yield


def format_steps(taken: Taken) -> list[str]:
    """Return a line for each step, and one for its problem."""
    return [
        line
        for step, problem in taken
        for line in (str(step), *([f"  failed: {problem}"] if problem else []))
    ]


def make_directories(path: str, mode: int = 0o755) -> None:
    """Make a directory with this mode, and its parents, durably."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    make_directories(above)
    with suppress(FileExistsError):
        os.mkdir(path, mode)
    files.sync_directory(above)


def _name_temporary(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.new")


# --- The installation


SERVICES = ("watch", "view")
"""The commands whose services `install` starts if it is asked for them."""


class Wanted(NamedTuple):
    """The arguments of an installation."""

    shipped: Program
    places: Places
    # None of them: for jobs alone; None: the hooks.d files stay as they are.
    targets: tuple[str, ...] | None
    words: tuple[str, ...] = ()  # options of the hook, for the hooks.d files
    adopt: bool = False  # the timer's reconcile gets --adopt
    force: bool = False  # replace files of a package, of the Helm chart or of a MachineConfig, too
    services: tuple[str, ...] = ()  # of SERVICES, those to start

    @property
    def kept(self) -> tuple[str, ...]:
        """Return the targets whose hooks.d files are not removed."""
        return TARGETS if self.targets is None else self.targets


def install(wanted: Wanted, *, dry_run: bool) -> Taken:
    """Install; returns the steps taken. Raises Refused."""
    places = wanted.places
    if problems := find_problems(wanted):
        raise Refused(*problems)
    refuse_others(places, force=wanted.force)
    directory = places.at(places.program_dir)
    made = take_steps([make_directory(directory, 0o755)], dry_run=dry_run)
    with lock_directories(directory, places.at(places.hooks_dir)):
        return made + take_steps(plan_install(wanted), dry_run=dry_run)


def refuse_others(places: Places, *, force: bool) -> None:
    """Raise Refused if an installation here has another owner than `install`."""
    origin = find_origin(places)
    if origin is not INSTALL and not (force or places.top):
        raise Refused(
            f"{NAME} was installed by {origin.name}; remedy: {origin.away} first, or --force"
        )


def plan_install(wanted: Wanted) -> list[Step]:
    """Return all steps, including those that are already done."""
    places, text = wanted.places, wanted.shipped.text
    at = places.at
    tmpfiles = text(f"packaging/tmpfiles.d/{NAME}.conf")
    return [
        # Remove an unwanted JSON first, as in uninstall.
        *(remove_file(at(places.json(target))) for target in TARGETS if target not in wanted.kept),
        # Before the program: it names what the next boot removes.
        remove_file(at(places.stub_tmpfiles)),
        # A program is tried before it is in place: until then runtimes run the former one,
        # or skip a JSON whose program is missing. One that is in place already is tried
        # before a hooks.d file names it.
        write_file(
            at(places.program), wanted.shipped.data, 0o755, None if places.top else try_program
        ),
        *([] if places.top else [Step("try", places.program, lambda: try_program(places.program))]),
        *_remove_bytecode(places),
        make_link(at(places.link), places.link_target),
        # The timer before the JSON: a container with the hook needs reconcile.
        *(write_file(at(unit), _make_unit(wanted, unit).encode()) for unit in places.units),
        write_file(at(places.tmpfiles), tmpfiles.encode()),
        # No hook makes the directory of the history.
        make_directory(at(places.log_dir), 0o750),
        *_plan_activation(wanted),
        remove_file(at(places.owner)),  # with --force: the former owner has lost these files
        *(
            write_file(at(places.json(name)), make_hook_file(wanted, name).encode())
            for name in wanted.targets or ()
        ),
    ]


def make_hook_file(wanted: Wanted, target: str) -> str:
    """Return the hooks.d file for a target."""
    places = wanted.places
    text = wanted.shipped.text(f"oci-hooks/{os.path.basename(places.json(target))}")
    shipped = formats.loads(text)["hook"]
    given = {word.partition("=")[0] for word in wanted.words}
    kept = [word for word in shipped["args"] if word.partition("=")[0] not in given]
    text = text.replace(formats.dumps(shipped["path"]), formats.dumps(places.program))
    return text.replace(formats.dumps(shipped["args"]), formats.dumps([*kept, *wanted.words]))


def _make_unit(wanted: Wanted, path: str) -> str:
    """Return a unit that starts the program of this prefix."""
    text = wanted.shipped.text(f"packaging/systemd/{os.path.basename(path)}")
    is_same, places = wanted.targets is None, wanted.places
    if wanted.adopt or (is_same and places.adopts()):
        text = text.replace(
            f"={Places().link} reconcile\n", f"={Places().link} reconcile --adopt\n"
        )
    mark = f"{JOBS_MARK}\n" if not wanted.kept or (is_same and places.is_for_jobs()) else ""
    return mark + text.replace(f"={Places().link} ", f"={places.link} ")


def _plan_activation(wanted: Wanted) -> list[Step]:
    places = wanted.places
    if places.top or not programs.has_systemd():
        return []
    timer, metrics = map(os.path.basename, (places.timer, places.metrics_service))
    services = {name: os.path.basename(getattr(places, name)) for name in SERVICES}
    return [
        run_command("systemd-tmpfiles", "--create", places.tmpfiles),
        run_command("systemctl", "daemon-reload"),
        run_command(
            "systemctl", "enable", "--now", timer, *(services[name] for name in wanted.services)
        ),
        # Restart running services, which still run the former program.
        run_command("systemctl", "try-restart", *services.values(), metrics),
    ]


# --- What prevents an installation


def find_problems(wanted: Wanted) -> list[str]:
    """Return the problems that prevent an installation, each with its remedy."""
    places, problems = wanted.places, []
    if not _PLAIN.fullmatch(places.prefix):
        remedy = "use letters, digits and _./:+=,@~^-"
        problems.append(
            f"--prefix={places.prefix!r} has characters that a systemd unit cannot hold; remedy: "
            f"{remedy}"
        )
    untouched = [] if wanted.targets is not None else [places.json(target) for target in TARGETS]
    foreign = [
        places.at(path)
        for path in places.files()
        if path not in untouched and places.is_foreign(path)
    ]
    problems += [
        f"{path} exists and was not installed by {NAME}; remedy: move it away" for path in foreign
    ]
    if wanted.targets is None:
        return problems
    # Readers of two directories would call the hook twice, or the wrong one.
    ours = os.path.realpath(places.at(places.hooks_dir))
    others = [
        directory for directory in hooksd.READERS if os.path.realpath(places.at(directory)) != ours
    ]
    return problems + [
        f"{entry.path} already calls the hook; remedy: remove it, or its package, or uninstall "
        f"--hooks-dir={directory}"
        for directory in others
        for entry in hooksd.read_directory(places.at(directory))
        if entry.our_hook is not None
    ]


# --- Whether the program works

_BLOCKERS = (
    "see whether its interpreter is there, and whether SELinux (ausearch -m avc) or fapolicyd "
    "forbids it"
)


def try_program(path: str) -> None:
    """Run the program like a runtime.

    Raises Refused if it fails, since containers would fail, too.
    """
    with tempfile.TemporaryDirectory(prefix=NAME) as scratch:
        check_end(
            path, programs.run_program([path, "hook", f"--run-dir={scratch}/run"], stdin=_STOPPED)
        )


def check_end(path: str, ended: programs.Exit) -> None:
    """Raise Refused, with the cause, if the program ended with a failure or a
    message, or did not start.
    """
    if problem := ended.problem or ended.error.strip():
        remedy = (
            f"take the file for {os.uname().machine}" if problem.endswith("ENOEXEC") else _BLOCKERS
        )
        mount = system.try_call(os.statvfs, directory := os.path.dirname(path))
        if mount is not None and mount.f_flag & os.ST_NOEXEC:
            remedy = (
                "its file system is mounted noexec: mount -o remount,exec $(findmnt -n -o TARGET "
                f"-T {directory})"
            )
        raise Refused(f"{path} does not run: {problem}; remedy: {remedy}")


# --- The removal
#
# The hooks of a container are fixed when it is created, so live containers, and a base_runtime_spec
# of containerd, go on calling the program, and some runtimes fail without it. So no removal ever
# unlinks its path. The JSON goes first, then all keys are ended, and then a stub that does nothing
# takes the program's place until the next boot, when no container can name it. A container whose
# creation began before the JSON went may begin a key after the others have ended. So the stub comes
# at once after that; what is begun in between is left until the next boot.


def uninstall(
    places: Places, options: Options, *, force: bool, dry_run: bool
) -> tuple[Taken, reconcile.Remains]:
    """Uninstall; returns the steps taken, and what is left. Raises Refused, HookError."""
    refuse_others(places, force=force)
    if not places.top and os.path.isdir(options.run_dir) and not host.in_host_namespaces():
        # In another namespace groups look empty that are not.
        raise HookError(Reason.DENIED, host.NOT_HOST_NAMESPACES, hint=host.NAMESPACES_HINT)
    at, remains = places.at, reconcile.Remains([], [])
    with lock_directories(at(places.program_dir), at(places.hooks_dir)):
        foreign = [at(path) for path in places.files() if places.is_foreign(path)]

        def take(planned: list[Step]) -> Taken:
            return take_steps(
                [step for step in planned if step.what not in foreign], dry_run=dry_run
            )

        taken = take([remove_file(at(places.json(target))) for target in TARGETS])
        taken += take(_plan_end_of_services(places))
        if not places.top and system.try_call(reconcile.has_keys, options) is not False:
            try:
                remains = remains if dry_run else reconcile.end_all_keys(options)
            except (HookError, OSError) as error:
                remains = reconcile.Remains([str(explain(error))], [])
            taken.append(
                (Step("end", "all keys", lambda: None), "; ".join(remains.unfinished) or None)
            )
        taken += take(_plan_rest(places, is_finished=not remains.unfinished))
    left = [f"{path} was not installed by {NAME}" for path in foreign]
    if files.list_if_there(at(places.log_dir)):
        left.append(f"{at(places.log_dir)}, the history of what containers and jobs have used")
    return taken, reconcile.Remains(remains.unfinished, left + remains.left)


def _plan_end_of_services(places: Places) -> list[Step]:
    here = not places.top and programs.has_systemd()
    active = (
        places.timer,
        places.watch,
        places.view,
        places.textfile_timer,
        places.metrics_service,
    )
    units = [os.path.basename(path) for path in active if here and os.path.exists(path)]
    return [
        # Disable the units while they exist, so that systemd removes its links to them.
        *([run_command("systemctl", "disable", "--now", *units)] if units else []),
        *(remove_file(places.at(path)) for path in (*places.units, places.tmpfiles)),
        *([run_command("systemctl", "daemon-reload")] if units else []),
    ]


def _plan_rest(places: Places, *, is_finished: bool) -> list[Step]:
    """Return the steps after the end of the keys.

    If a key is left, the program stays for another uninstall, or until the next boot.
    """
    program = places.at(places.program)
    stub = (
        plan_stub(places)
        if os.path.lexists(program) and not places.is_foreign(places.program)
        else []
    )
    if not is_finished:
        return stub[1:]
    return [
        remove_directory(places.at(places.log_dir)),
        remove_file(places.at(places.link)),
        *(stub or [remove_file(program)]),  # of a killed step
        *_remove_bytecode(places),
        remove_file(places.at(places.owner)),
    ]


def _remove_bytecode(places: Places) -> list[Step]:
    """Remove what former versions made beside the program, for the node's Python."""
    directory = places.at(places.program_dir)
    names = [
        name
        for name in files.list_if_there(directory)
        if name.startswith(f"{hooksd.PROGRAM}.cpython-")
    ]
    return [remove_file(f"{directory}/{name}") for name in names]


def plan_stub(places: Places) -> list[Step]:
    """Put the stub into the place of the program, in one step, and let the next boot remove it,
    and the file for that.

    `install` removes this file before it writes the program.
    """
    text = "".join(f"r! {path}\n" for path in (places.program, places.stub_tmpfiles))
    stub = write_file(places.at(places.program), STUB, 0o755)._replace(verb="stub")
    return [stub, write_file(places.at(places.stub_tmpfiles), text.encode())]


def format_removal(taken: Taken, remains: reconcile.Remains) -> list[str]:
    """Return a line for each thing that was left, and why."""
    lines = [f"left: {line}" for line in remains.left]
    is_removed = any(step.verb == "stub" for step, _ in taken)
    was_for_pods = any(step.what.endswith(f"-{KUBERNETES}.json") for step, _ in taken)
    if is_removed and was_for_pods and any(map(programs.find_program, CONTAINERDS)):
        lines.append(
            "if a base_runtime_spec of containerd names the program, remove that before the next "
            "boot"
        )
    if remains.unfinished:
        lines += [f"kept: {line}" for line in remains.unfinished]
        lines.append(
            "run uninstall again: until then, or until the next boot, the program and these "
            "records stay"
        )
    return lines


# --- containerd: the hook in a base_runtime_spec

# What `ctr oci spec` prints. containerd drops it from its own specification (containerd/cri#515)
# but not from a base_runtime_spec, where it would limit every container to 1024 open files.
_RLIMITS_OF_CTR = [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}]


def add_hook(spec: object, hook: dict[str, Any]) -> dict[str, Any]:
    """Return a specification from `ctr oci spec` with this hook at both stages.

    Raises ValueError or OSError for an invalid one. Our hook goes first, because runc ends a stage
    at the first hook that fails. It replaces our earlier hook. The limit on open files stays as it
    is without a base_runtime_spec. Source: config.md of the OCI runtime specification (hooks), and
    containerd's docs/cri/config.md (base_runtime_spec).
    """
    if not isinstance(spec, dict) or not isinstance(spec.get("ociVersion"), str):
        raise ValueError("stdin is not an OCI runtime specification (ociVersion: missing)")
    hooksd.list_hooks("stdin", spec)
    hooks = dict(spec.get("hooks") or {})
    for stage in ("createRuntime", "poststop"):
        others = [
            other
            for other in hooks.get(stage) or []
            if os.path.basename(other["path"]) != hooksd.PROGRAM
        ]
        hooks[stage] = [hook, *others]
    changed = {**spec, "hooks": hooks}
    process = spec.get("process")
    if isinstance(process, dict) and process.get("rlimits") == _RLIMITS_OF_CTR:
        changed["process"] = {name: value for name, value in process.items() if name != "rlimits"}
    return changed
