# SPDX-License-Identifier: Apache-2.0
"""Real containers for tests and the demo, on any Linux:
Podman with a storage of its own, and plain runc.

    with closing(Lab(["--resctrl-root=..."])) as lab:
        gate = lab.run("web")   # its command runs now
        gate.open()             # and ends
        lab.watch.wait("poststop", lab.container_id("web"))

Nothing of the user's Podman is touched, and nothing outlives close().
Every wait has a deadline and is for an event.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fetch import provision
from tests.resctrlfs.events import Seen, look
from tests.resctrlfs.places import detach
from tests.support.cgroups import end_cgroups, path_of, pids_below
from tests.support.hook import shipped
from tests.support.leftovers import make_directory, own_mark
from tests.support.waiting import wait

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE = 300.0
# Podman would raise these above what a small VM allows, and fail
ULIMITS = ("nofile=1024:1024", "nproc=1000:1000")
STAGES = ("createRuntime", "poststop")
# Builtins alone, since there may be no PATH. A state may have several lines, and the last of them
# no end; it is written as one, shorter than PIPE_BUF, so that lines do not mix.
WATCH = """\
#!/bin/sh
state=
while IFS= read -r line || test -n "$line"; do state=$state$line; done
printf '%s\\n' "$state" >{fifo}
"""
# crun refuses cgroup v1 and v2 side by side: give it a mount namespace in which there is but v2
ON_V2 = (
    'test -e /sys/fs/cgroup/cgroup.controllers || mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
)
CRUN = ("unshare", "-m", "sh", "-c", ON_V2, "sh", "crun")
READ_GROUPS = (
    '{ while read -r line; do echo -n "$line "; done </proc/self/cpu_resctrl_groups; echo; }'
)
"""For `first` of a Gate: the shell itself reads which groups it is in, as its first act."""
IMAGE_COMMAND = ["/bin/sleep", "100000"]
APPLETS = ("sh", "cat", "echo", "sleep", "true")
ALWAYS: Mapping[str, object] = {"always": True}
LIBPOD: Mapping[str, object] = {"annotations": {r"^io\.container\.manager$": "^libpod$"}}


def missing(*, model: bool = True) -> str | None:
    """Why no container can be run here, or the model of resctrl not be mounted;
    None if all is well.
    """
    if os.geteuid() != 0:
        return "not root"
    if model and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no /dev/fuse"
    for program in ("podman", "runc", "conmon"):
        if not _find(program):
            return f"no {program}"
    if not _find_busybox():
        return "no busybox"
    if not shipped().is_file():
        return f"no {shipped()}: run `python3 build.py`"
    return None


def _find(program: str) -> str | None:
    # conmon lies outside PATH on some distributions
    return shutil.which(program) or shutil.which(
        program, path="/usr/libexec/podman:/usr/lib/podman:/usr/sbin:/sbin"
    )


def _find_busybox() -> str | None:
    """Return the static one, which openSUSE has under a name of its own."""
    return _find("busybox-static") or _find("busybox")


class LineFifo:
    """A FIFO that others write lines to.

    Open for both directions: no writer ever waits, and none is the last.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path, 0o666)
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._pending = b""

    def line(self, what: str) -> str:
        """The next line; TimeoutError naming `what` was waited for."""
        while b"\n" not in self._pending:
            if not select.select([self._descriptor], [], [], DEADLINE)[0]:
                raise TimeoutError(f"{what} did not come")
            self._pending += os.read(self._descriptor, 65536)
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()

    def write(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def close(self) -> None:
        os.close(self._descriptor)


class Gate:
    """A container's command, which prints a line once it runs, and ends when the gate is opened."""

    def __init__(self, name: str, directory: Path, first: str = "echo $$") -> None:
        """`first`: shell commands that print the line."""
        self.name = name
        self._up = LineFifo(directory / f"{name}.up")
        self._go = LineFifo(directory / f"{name}.go")
        self.command = [
            "/bin/sh",
            "-c",
            f"{first} >/gates/{name}.up; read word </gates/{name}.go; : {name}",
        ]

    def wait_up(self) -> str:
        """Return the line."""
        return self._up.line(f"the first line of container {self.name}")

    def open(self) -> None:
        self._go.write("go\n")

    def close(self) -> None:
        self._up.close()
        self._go.close()


class Watch:
    """A hook that sorts after all others and tells which stage of which container is through.

    Podman runs poststop in a process of its own after the container's end:
    without this there is nothing to wait for.
    """

    def __init__(self, directory: Path) -> None:
        self._fifo = LineFifo(directory / "watch.fifo")
        self.program = directory / "watch.sh"
        self.program.write_text(WATCH.format(fifo=self._fifo.path))
        self.program.chmod(0o755)
        self._seen: list[tuple[str, str]] = []

    def wait(self, stage: str, container_id: str) -> None:
        """Until that stage of that container was through once more than it has been waited for."""
        while (stage, container_id) not in self._seen:
            state = json.loads(self._fifo.line(f"{stage} of {container_id[:12]}"))
            self._seen.append(
                ("poststop" if state["status"] == "stopped" else "createRuntime", state["id"])
            )
        self._seen.remove((stage, container_id))

    def close(self) -> None:
        self._fifo.close()


class Cgroups:
    """One cgroup below the root, in each hierarchy that there is, v1 and v2,
    made by the runtimes and removed here.
    """

    def __init__(self, name: str) -> None:
        self.path = f"/{name}"
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        self._roots = [
            Path(mount[1]) / name for mount in mounts if mount[2] in ("cgroup", "cgroup2")
        ]

    def pids(self) -> set[int]:
        return set(pids_below(self._roots))

    def end(self) -> None:
        """End whatever is in it, what it starts meanwhile too, and remove it."""
        end_cgroups(self._roots)


class Lab:
    """Where containers run: rootfs, hooks, Podman's and runc's state,
    all below one short-named directory.
    """

    def __init__(self, hook_arguments: Sequence[str] = ()) -> None:
        """Our hook is installed for all of Podman's containers;
        add_hook() and `hooks_dir` change that.
        """
        self.base = make_directory(short_scratch())
        self.base.chmod(0o755)
        self.hook = shipped()
        self.hook_arguments = ["resctrl-mon-hook", "hook", *hook_arguments]
        self.cgroups = Cgroups(self.base.name)
        self.place = ["--network=none", f"--cgroup-parent={self.cgroups.path}"]
        self.engine = ["--runtime=runc", "--cgroup-manager=cgroupfs"]
        self.hooks_dir = self._directory("hooks.d")
        self.gates = self._directory("gates")
        self._open_gates: list[Gate] = []
        self._runc_containers: list[RuncContainer] = []
        self.watch = Watch(self.base)
        self._write_configuration()
        try:
            self.rootfs = make_rootfs(self.base / "rootfs")
        except BaseException:
            self.close()
            raise
        self.add_hook("10-resctrl-mon-hook.json", LIBPOD)
        self.add_hook("99-watch.json", ALWAYS, path=self.watch.program, args=["watch"])

    def _directory(self, name: str) -> Path:
        directory = self.base / name
        directory.mkdir()
        return directory

    def _write_configuration(self) -> None:
        self.containers_conf = self.base / "containers.conf"
        # Locks in files: those in shared memory are one table for all of root's Podmans
        self.containers_conf.write_text(
            f"[containers]\ndefault_ulimits = {json.dumps(ULIMITS)}\n"
            f'[engine]\nhooks_dir = ["{self.hooks_dir}"]\nevents_logger = "file"\nlock_type = '
            '"file"\n'
        )
        # Nothing of the caller's: neither Podman's settings, nor a proxy,
        # nor a home with configuration in it
        self.environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.base),
            "CONTAINERS_CONF": str(self.containers_conf),
        }

    def add_hook(
        self,
        name: str,
        when: Mapping[str, object],
        path: Path | None = None,
        args: Sequence[str] | None = None,
    ) -> None:
        """Put a hooks.d file in place; without path and args it is for ours."""
        content = {
            "version": "1.0.0",
            "hook": self.hook_entry(path, args),
            "when": when,
            "stages": STAGES,
        }
        (self.hooks_dir / name).write_text(json.dumps(content, indent=2))

    def hook_entry(
        self, path: Path | None = None, args: Sequence[str] | None = None
    ) -> dict[str, object]:
        """One hook as hooks.d and config.json both have it."""
        return {
            "path": str(path or self.hook),
            "args": list(args or self.hook_arguments),
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "timeout": 60,
        }

    def gate(self, name: str, first: str = "echo $$") -> Gate:
        gate = Gate(name, self.gates, first)
        self._open_gates.append(gate)
        return gate

    # Podman

    def podman(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run Podman on the lab's storage to its end.

        A failure's message holds what Podman said.
        """
        done = subprocess.run(
            [*self.podman_command(), *words],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        if check and done.returncode != 0:
            raise RuntimeError(
                f"podman {' '.join(words)}: exit status {done.returncode}: {done.stderr.strip()}"
            )
        return done

    def podman_command(self) -> list[str]:
        """Podman on the lab's storage."""
        return [
            "podman",
            f"--root={self.base}/root",
            f"--runroot={self.base}/runroot",
            f"--tmpdir={self.base}/tmp",
            "--storage-driver=vfs",  # works on whatever file system this is, and leaves no mounts
            *self.engine,
        ]

    def run(self, name: str, *options: str, pod: str | None = None) -> Gate:
        """Start a container from the rootfs, detached; returns when its command is running."""
        gate = self.gate(name)
        self.podman(
            "run",
            "-d",
            *self.options(name, pod),
            *options,
            "--rootfs",
            str(self.rootfs),
            *gate.command,
        )
        gate.wait_up()
        return gate

    def options(self, name: str, pod: str | None = None) -> list[str]:
        """What each container of the lab is started with.

        In a pod, network and cgroup are its infra container's.
        """
        place = [f"--pod={pod}"] if pod else self.place
        return [
            f"--name={name}",
            f"--volume={self.gates}:/gates",
            "--security-opt=label=disable",
            *place,
        ]

    def container_id(self, name: str) -> str:
        return self.inspect(name, "{{.Id}}")

    def init(self, name: str) -> Seen:
        """The container's first process, which must be running."""
        return look(int(self.inspect(name, "{{.State.Pid}}")))

    def remove_pod(self, name: str) -> None:
        """Podman fails if a conmon is just ending, whose cgroup it cannot remove.

        The pod is gone.
        """
        self.podman("pod", "rm", "-f", "-t", "0", name, check=False)
        assert self.podman("pod", "exists", name, check=False).returncode == 1

    def inspect(self, name: str, template: str) -> str:
        return self.podman("container", "inspect", "--format", template, name).stdout.strip()

    def import_image(self, name: str) -> None:
        """The rootfs as an image, which waits until it is killed."""
        archive = self.base / "image.tar"
        subprocess.run(
            ["tar", "-C", str(self.rootfs), "-cf", str(archive), "."], check=True, timeout=DEADLINE
        )
        self.podman("import", f"--change=CMD {json.dumps(IMAGE_COMMAND)}", str(archive), name)
        archive.unlink()

    # runc

    def runc(
        self,
        name: str,
        annotations: Mapping[str, str] | None = None,
        runtime: Sequence[str] = ("runc",),
        first: str = "echo $$",
    ) -> RuncContainer:
        """Start a container by runc (or CRUN) itself, in the foreground;
        returns when its command is running.

        `first` is as a Gate has it.
        """
        config = self.runc_config(name, [], annotations or {})
        container = self.start_runc(name, config, runtime, first)
        try:
            container.line = container.gate.wait_up()
        except TimeoutError:
            raise RuntimeError(f"{runtime[-1]} run {name}: {container.output()}") from None
        return container

    def runc_config(
        self, name: str, command: Sequence[str], annotations: Mapping[str, str], *options: str
    ) -> dict[str, Any]:
        """A bundle's config.json, with our hook, which has further options,
        and the watch's for both stages.
        """
        hooks = [
            self.hook_entry(args=[*self.hook_arguments, *options]),
            self.hook_entry(self.watch.program, ["watch"]),
        ]
        config = bundle_config(
            self.rootfs, command, path_of(self.cgroups.path, name, annotations), self.gates
        )
        return {**config, "hooks": dict.fromkeys(STAGES, hooks), "annotations": dict(annotations)}

    def start_runc(
        self,
        name: str,
        config: dict[str, Any],
        runtime: Sequence[str] = ("runc",),
        first: str = "echo $$",
    ) -> RuncContainer:
        """Start a container as `runc` does, by this config.json, but for its command,
        for which it does not wait.
        """
        gate = self.gate(name, first)
        config["process"]["args"] = gate.command
        bundle = self._directory(f"bundle-{name}")
        (bundle / "config.json").write_text(json.dumps(config))
        command = [*runtime, f"--root={self.base}/{runtime[-1]}"]
        container = RuncContainer(name, bundle, command, self.environment, gate)
        self._runc_containers.append(container)
        return container

    # The end

    def close(self) -> None:
        """Remove everything, by Podman's own ways first, and then without it.

        Can be called twice.
        """
        if not self.base.exists():
            return
        if (self.base / "root").exists():
            for words in (["pod", "rm", "-f", "-a", "-t", "0"], ["rm", "-f", "-a", "-t", "0"]):
                with suppress(subprocess.TimeoutExpired, OSError):
                    self.podman(*words, check=False)
        self.cgroups.end()
        for container in self._runc_containers:
            container.close()
        for gate in self._open_gates:
            gate.close()
        self.watch.close()
        remove(self.base)


class RuncContainer:
    """A foreground `runc run`, or that of another runtime with the same command line.

    When it has ended, the container is deleted and its poststop hooks have run. `line`:
    what its command printed first.
    """

    def __init__(
        self,
        container_id: str,
        bundle: Path,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        gate: Gate | None = None,
    ) -> None:
        """`command`: the runtime with its own options."""
        self.id = container_id
        self.command = list(command)
        self.line = ""
        self._gate = gate
        self._environment = environment
        self._log = bundle / "output"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "run", f"--bundle={bundle}", container_id],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def gate(self) -> Gate:
        assert self._gate is not None
        return self._gate

    def init(self) -> Seen:
        """Its first process. crun has no state of a container that has just begun to run."""
        wait(lambda: self._ask().returncode == 0)
        return look(json.loads(self._ask().stdout)["pid"])

    def _ask(self) -> subprocess.CompletedProcess[bytes]:
        command = [*self.command, "state", self.id]
        return subprocess.run(
            command, env=self._environment, check=False, capture_output=True, timeout=DEADLINE
        )

    def output(self) -> str:
        return self._log.read_text(errors="replace").strip()

    def wait(self) -> int:
        return self._process.wait(DEADLINE)

    def end(self) -> None:
        """Let the container's command end, and wait until the runtime has cleaned
        up and poststop is through.
        """
        self.gate.open()
        assert (self.wait(), self.output()) == (0, "")

    def close(self) -> None:
        """Once the container has been ended: wait for runc,
        which runs the poststop hooks; not for ever.
        """
        try:
            self.wait()
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def bundle_config(
    rootfs: Path, command: Sequence[str], cgroup: str, gates: Path | None = None
) -> dict[str, Any]:
    """The config.json of a container without hooks, which finds `gates` below /gates."""
    mounts: list[dict[str, object]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        # Runc makes links there; many share a /.
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
    ]
    if gates is not None:
        mounts.append(
            {
                "destination": "/gates",
                "type": "bind",
                "source": str(gates),
                "options": ["bind", "rw"],
            }
        )
    return {
        "ociVersion": "1.0.2",
        "process": {
            "cwd": "/",
            "args": list(command),
            "env": ["PATH=/bin"],
            "user": {"uid": 0, "gid": 0},
        },
        "root": {"path": str(rootfs), "readonly": True},
        "mounts": mounts,
        "linux": {
            "cgroupsPath": cgroup,
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")],
        },
    }


def make_rootfs(directory: Path) -> Path:
    """A root file system of nothing but a static busybox (Debian: busybox-static)."""
    busybox = _find_busybox()
    assert busybox is not None, "no busybox"
    for name in ("bin", "dev", "gates", "proc", "sys", "etc", "tmp", "run"):
        (directory / name).mkdir(parents=True)
    shutil.copy(busybox, directory / "bin" / "busybox")
    for applet in APPLETS:
        (directory / "bin" / applet).symlink_to("busybox")
    done = subprocess.run(
        [_find("chroot") or "chroot", str(directory), "/bin/true"],
        capture_output=True,
        check=False,
        timeout=DEADLINE,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{busybox} does not run by itself (Debian: busybox-static): "
            f"{done.stderr.decode().strip()}"
        )
    return directory


def short_scratch() -> str:
    """Where temporary files go if that is short enough, else /tmp.

    Podman takes no runroot of more than 50 characters, and a socket's path is short, too.
    In memory: a disk's file system is slow at the many files of images that come and go.
    """
    usual = provision.find_scratch()
    return usual if len(f"{usual}/{own_mark()}12345678/runroot") <= 50 else "/tmp"


def remove(base: Path) -> None:
    """Remove the directory of a lab that is over, once nobody works in it any more.

    conmon calls Podman once more behind each container, in its own time.
    """
    while left := list(users(base)):
        for descriptor in left:
            with os.fdopen(descriptor):
                if not select.select([descriptor], [], [], DEADLINE)[0]:
                    raise TimeoutError(f"somebody still works in {base}")
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        target = line.split()[1].encode().decode("unicode_escape")
        if target.startswith(f"{base}/"):
            detach(Path(target))
    for record in (*Path("/run/runc").glob("*/state.json"), *Path("/run/crun").glob("*/status")):
        with suppress(FileNotFoundError):  # others' containers come and go
            if os.fsencode(base) in record.read_bytes():  # of a container whose conmon was killed
                shutil.rmtree(record.parent)
    shutil.rmtree(base)


def users(base: Path) -> Iterator[int]:
    """Descriptors of the processes that name a directory on their command line (pidfd_open(2))."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError), entry.open("rb") as file:
            if os.fsencode(base) in file.read(1 << 16):  # a process makes it as long as it wants
                yield os.pidfd_open(int(entry.parent.name))
