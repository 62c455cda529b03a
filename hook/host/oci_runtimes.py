"""The containers that the OCI runtimes of this node know of, by their own `list` and `state`: for reconcile --adopt.

Nothing that a runtime does is relied on: not that it ends, nor how much it prints, nor of what types. One root
directory may be shared by runtimes that cannot read each other's containers (containerd's is, by runc and crun), so
they are asked one after the other, until each container there was told of by one of them.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from dataclasses import dataclass

from hook.base import jsontext, names, procfs, system
from hook.base.explain import errno_name, explain
from hook.base.models import State, ValidationError
from hook.stages import identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from typing import Any

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DIRECTORIES = (
    *_PATH.split(":"),
    "/usr/libexec/crio",  # CRI-O's packages bring runtimes of their own
    "/usr/lib/cri-o-runc/sbin",  # so did the former ones for Debian; Podman's containers.conf(5) has it, too
    "/var/lib/rancher/k3s/data/current/bin",
    "/var/lib/rancher/rke2/bin",
    "/var/lib/k0s/bin",
)
# Where runtimes keep their containers, and the names of programs to ask there, the likeliest first.
_ROOTS = {
    "/run/runc": ("runc", "crun"),  # runc's own for root: CRI-O (runtime_root in its configuration), Podman, plain runc
    "/run/crun": ("crun", "runc"),  # crun's own for root: CRI-O, Podman, plain crun
    # containerd's shim has /run/containerd/runc built in (RuncRoot), wherever containerd's own state is, and gives each
    # of containerd's namespaces a directory there: Kubernetes' (that of k3s, RKE2 and k0s, too), ctr's and nerdctl's.
    "/run/containerd/runc/k8s.io": ("runc", "crun"),
    "/run/containerd/runc/default": ("runc", "crun"),
    # Docker's (moby) is left out: its users have no hooks, and what it starts would not be taken out at its end.
}
_STATE_FILES = ("state.json", "status")  # runc's and crun's: a directory in a root without one holds no container
_LIVE = ("created", "running", "paused")
_STOPPED = "stopped"  # it has ended, and its poststop hooks run when it is deleted
_PATIENCE = 10.0  # seconds for one answer
_PATIENCE_FOR_SOME = 5.0  # for all that states_of asks, which is at each reconcile: the next one asks about the rest
_PATIENCE_IN_ALL = 30.0  # and for all of them: reconcile has other things to do, and its own end
_LONGEST_ANSWER = 16 << 20
_LONGEST_REMARK = 200
_MOST_COMPLAINTS = 10  # about containers of one root directory


@dataclass(frozen=True)
class Runtime:
    """An OCI runtime that is called as runc is: the path of its program, and the root directory that it looks in."""

    path: str
    root: str


class _Unanswered(Exception):
    """A runtime did not answer, or not what was asked."""


def states(
    runtimes: Sequence[Runtime] | None = None, further: Sequence[str] = (), *, stopped: bool = False
) -> tuple[list[dict[str, Any]], list[str]]:
    """The states of the containers that have a live process, and a line on each runtime or container that is not told.

    A state is what `RUNTIME --root ROOT state ID` prints, decoded, and suits models.State; its status is created,
    running or paused, its pid above 0. With `stopped` those that have ended and are not deleted come, too. No ID comes
    twice. The containers that hold a pod's sandbox are left out: no hook ever sees those. Without `runtimes` all that
    are installed are asked, also in the `further` root directories. Raises nothing, whatever a runtime does.
    """
    by_root: dict[str, list[str]] = {} if runtimes is not None else _installed(further)
    for runtime in runtimes or ():
        by_root.setdefault(runtime.root, []).append(runtime.path)
    deadline = system.monotonic() + _PATIENCE_IN_ALL
    found: dict[str, dict[str, Any]] = {}
    complaints: list[str] = []
    for root, programs in by_root.items():
        survey = _Survey(root, programs, deadline, {*_LIVE, _STOPPED} if stopped else {*_LIVE})
        survey.ask()
        for container, state in survey.found.items():
            found.setdefault(container, state)
        complaints += survey.complaints()
    return list(found.values()), complaints


def states_of(containers: Collection[str]) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """The states of those of these containers that the installed runtimes have, by ID, and those not told of in time.

    Sandboxes and whatever status are among them. What no runtime has is in neither: another tool's, or gone. No runtime
    is asked about any other container. Raises nothing.
    """
    deadline = system.monotonic() + _PATIENCE_FOR_SOME
    found: dict[str, dict[str, Any]] = {}
    untold: set[str] = set()
    for root, programs in _installed(()).items():
        survey = _Survey(root, programs, deadline)
        untold |= survey.ask_about(it for it in sorted(containers) if it not in found)
        found.update(survey.found)
    return found, untold - found.keys()


def has_roots() -> bool:
    """Whether any runtime has a root directory here. In a container, for one, none may be mounted."""
    return bool(_installed(()))


def _installed(further: Sequence[str]) -> dict[str, list[str]]:
    """The root directories that there are, with the programs to ask there, which may be none."""
    roots = {**dict.fromkeys(further, ("runc", "crun")), **_ROOTS}
    there = [root for root in roots if os.path.isdir(root)]
    return {root: [path for name in roots[root] for path in _programs(name)] for root in there}


def _programs(name: str) -> list[str]:
    """The paths of all programs of this name, none twice under different names."""
    paths = [f"{directory}/{name}" for directory in _DIRECTORIES]
    found: dict[str, str] = {}
    for path in paths:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


class _Survey:
    """What runtimes tell of one root directory. `found`: the states of its containers of these statuses, by ID.

    Without `statuses` those of any status, and of sandboxes.
    """

    def __init__(self, root: str, programs: Sequence[str], deadline: float, statuses: set[str] | None = None) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self._root = root
        self._programs = programs
        self._deadline = deadline
        self._statuses = statuses
        self._untold: set[str] = set()  # the containers that none told of yet
        self._listed_by: dict[str, str] = {}
        self._failed: list[str] = []  # lines on what is no single container's
        self._problems: dict[str, str] = {}  # lines, by container

    def ask(self) -> None:
        """Ask as many of the programs as it takes to be told of each container."""
        try:
            # None is asked of a directory that is not there: both runc and crun would make it.
            self._untold = {name for name in os.listdir(self._root) if _is_container_id(name)}
        except FileNotFoundError:
            return
        except OSError as error:
            self._failed.append(f"{self._root} cannot be read: {errno_name(error)}")
        for program in self._programs:
            if self._untold - self._listed_by.keys():
                self._list(program)
        # crun's list has no annotations. It also ends, in silence, at the first container that it cannot tell of.
        for container in sorted(self._untold):
            listed_by = self._listed_by.get(container)
            for program in [listed_by] if listed_by else self._programs:
                if container in self._untold and self._is_there(container):
                    self._ask_about(program, container)

    def ask_about(self, containers: Iterable[str]) -> set[str]:
        """Ask about those of these containers that are here, and no others; returns those that were not told of."""
        self._untold = {name for name in containers if _is_container_id(name) and self._is_there(name)}
        for container in sorted(self._untold):
            for program in self._programs:
                if container in self._untold:
                    self._ask_about(program, container)
        return self._untold

    def _list(self, program: str) -> None:
        words = ("list", "--format", "json")
        try:
            entries = self._answer(program, *words)
            if entries is None:  # runc's word for an empty list
                return
            if not isinstance(entries, list):
                raise _Unanswered("no list")
        except _Unanswered as error:
            self._failed.append(f"{self._called(program, *words)}: {error}")
            return
        strange = [entry for entry in entries if not _is_entry(entry)]
        if strange:
            self._failed.append(f"{self._called(program, *words)}: {len(strange)} entries are no containers")
        for entry in entries:
            if _is_entry(entry) and entry["id"] in self._untold:
                self._listed_by.setdefault(entry["id"], program)
                if self._statuses is not None and entry["status"] not in self._statuses:
                    self._untold.discard(entry["id"])
                elif "ociVersion" in entry and "annotations" in entry:  # runc's list has whole states
                    self._take(program, entry["id"], entry)

    def _ask_about(self, program: str, container: str) -> None:
        try:
            self._take(program, container, self._answer(program, "state", container))
        except _Unanswered as error:
            self._problems[container] = f"{self._called(program, 'state', container)}: {error}"

    def _take(self, program: str, container: str, state: Any) -> None:  # noqa: ANN401  not looked at yet
        """Note a state, if it is one of those that are wanted."""
        try:
            checked = State.model_validate(state)
        except ValidationError as error:
            self._problems[container] = f"{program} on {container}: no state: {explain(error.errors())}"
            return
        if checked.id != container:
            self._problems[container] = f"{program} on {container}: the state of {checked.id[:80]!r}"
            return
        self._untold.discard(container)
        if self._statuses is None:
            self.found[container] = state
            return
        is_wanted = checked.status in self._statuses and (checked.pid or checked.status == _STOPPED)
        if is_wanted and not is_sandbox(checked):
            self.found[container] = state

    def _called(self, program: str, *words: str) -> str:
        return " ".join((program, "--root", self._root, *words))

    def _answer(self, program: str, *words: str) -> Any:  # noqa: ANN401  that is what JSON is
        """What a runtime says; _Unanswered without the command, which is the caller's to tell."""
        deadline = min(self._deadline, system.monotonic() + _PATIENCE)
        try:
            return jsontext.loads(_output([program, "--root", self._root, *words], deadline))
        except ValueError as error:
            raise _Unanswered(str(error)) from None

    def _is_there(self, container: str) -> bool:
        return any(os.path.exists(f"{self._root}/{container}/{name}") for name in _STATE_FILES)

    def complaints(self) -> list[str]:
        """A line on each thing that could not be told. What is gone by now is nothing to complain of."""
        left = sorted(container for container in self._untold if self._is_there(container))
        known = [self._problems[container] for container in left if container in self._problems]
        lines = [*self._failed, *known[:_MOST_COMPLAINTS]]
        if len(known) > _MOST_COMPLAINTS:
            lines.append(f"{self._root}: no better with {len(known) - _MOST_COMPLAINTS} more containers")
        if left and not self._programs:
            lines.append(f"{self._root}: found no runtime to ask about {len(left)} containers")
        return lines


def _is_container_id(text: str) -> bool:
    try:
        names.container_id(text)
    except ValueError:
        return False
    return True


def _is_entry(entry: Any) -> bool:  # noqa: ANN401  not looked at yet
    """Whether this is what `list` tells of a container."""
    return isinstance(entry, dict) and isinstance(entry.get("id"), str) and isinstance(entry.get("status"), str)


def is_sandbox(state: State) -> bool:
    """Whether a container holds its pod's sandbox, as its own runtime says.

    Its cgroup tells which runtime that is: a pod's author can write the annotations of the other one.
    """
    said, places = state.annotations or {}, procfs.cgroups(state.pid) if state.pid else []
    maker = next(filter(None, (identity.maker(place, state.id) for place in places)), said.get("io.container.manager"))
    by_containerd = said.get("io.kubernetes.cri.container-type")
    if maker != "containerd" and (maker == "cri-o" or by_containerd is None):
        return said.get("io.kubernetes.cri-o.ContainerType") == "sandbox"
    return by_containerd == "sandbox"


# --- Programs


def _output(command: Sequence[str], deadline: float) -> str:
    """What a program prints; _Unanswered if it fails, or is not done at the deadline (system.monotonic())."""
    if system.monotonic() >= deadline:
        raise _Unanswered("not asked, since others took all the time")
    try:
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={"PATH": _PATH},
            start_new_session=True,  # it ends together with all that it started
        )
    except OSError as error:
        raise _Unanswered(f"cannot be started: {errno_name(error)}") from None
    try:
        text, remark = _read(program, deadline)
        status = program.wait(max(0.0, deadline - system.monotonic()))
    except subprocess.TimeoutExpired:
        _kill(program)
        raise _Unanswered("no answer in time") from None
    except BaseException:
        _kill(program)
        raise
    finally:
        for stream in (program.stdout, program.stderr):
            if stream is not None:
                stream.close()
    if status != 0:
        raise _Unanswered(f"exit status {status}: {_last_line(remark)}")
    return text.decode("utf-8", "replace")


def _read(program: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
    """All of stdout, and the end of stderr; subprocess.TimeoutExpired if they are still open at the deadline."""
    text, remark = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for stream, kept in ((program.stdout, text), (program.stderr, remark)):
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ, kept)
        while selector.get_map():
            left = deadline - system.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                raise subprocess.TimeoutExpired(program.args, left)
            for key, _ in ready:
                chunk = os.read(key.fd, system.READ_SIZE)
                if not chunk:
                    selector.unregister(key.fileobj)
                key.data.extend(chunk)
            del remark[: -system.READ_SIZE]
            if len(text) > _LONGEST_ANSWER:
                raise _Unanswered(f"more than {_LONGEST_ANSWER >> 20} MiB")
    return bytes(text), bytes(remark)


def _kill(program: subprocess.Popen[bytes]) -> None:
    """End a program and all that it started. It was not waited for yet, so its number is still its own."""
    try:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait(1.0)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass  # what the kernel does not let go of now will not go for waiting


def _last_line(remark: bytes) -> str:
    lines = [line.strip() for line in remark.decode("utf-8", "replace").split("\n")]
    last = next((line for line in reversed(lines) if line), "it does not say why")
    return "".join(it if it.isprintable() else "?" for it in last[:_LONGEST_REMARK])
