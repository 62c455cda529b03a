# SPDX-License-Identifier: Apache-2.0
"""Runs commands in a guest that has the kernel of tests/kernel/kernel.py: a real resctrl,
on a machine without RDT.

    python3 -m tests.kernel.vm [options] -- COMMAND...

The options are the fields of Vm. The command runs as root in the current directory; one word alone
is for bash. The exit status is the command's; 124: it took too long; 125: the guest failed.

The guest sees the host's / as it is, and what it changes is gone with it. /tmp and /run are its
own, but for /tmp/share, a directory of the host's, and for the checkout, its Python and the current
directory. QEMU ends with the thread that has started it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Union

from tests.kernel import kernel

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
QEMU = "qemu-system-x86_64"
DIE_WITH_PARENT = ("setpriv", "--pdeathsig=KILL")
Output = Union[int, IO[str], IO[bytes], None]
"""As subprocess takes it, but for PIPE."""


class GuestFailed(Exception):
    """The guest did not run the command to its end;
    the message has QEMU's and its kernel's last lines.
    """


class GuestTimeout(Exception):
    """The guest was still at it when its time was over."""


@dataclass(frozen=True)
class Vm:
    """What the guest is like."""

    rmids: int = 31
    """The highest RMID: how many groups, mon and ctrl, there can be besides the root."""
    closids: int = 8
    """CLOSIDs, the root's too. 0: a machine that can monitor and not allocate."""
    sockets: int = 2
    """Packages, each with its own L3."""
    smp: int = 2
    """CPUs, a multiple of the sockets."""
    memory: int = 1024
    """MiB. What the guest writes outside of /tmp/share lies in it, too."""
    shift: int = 0
    """Its clock counts instructions, 2**shift ns each: a busy host makes a guest slow, not late.

    By the host's clock, a kernel that is disturbed while it measures its TSC has a clock that runs
    several times too fast from then on, and what it runs is soon out of time.
    """
    timeout: float = 1800
    """Seconds, to end what hangs: on a busy machine an emulator takes its time."""
    mount: bool = True
    """Whether resctrl is mounted when the command starts."""
    mount_options: str = ""
    """For resctrl: cdp, mba_MBps, debug."""
    systemd: bool = False
    """Whether the host's systemd is PID 1.

    The command starts beside it, and has to wait until it is up.
    """
    append: str = ""
    """More for the kernel's command line: fakerdt.decay_ms=0 (no limbo),
    rdt=!energy,!perf (no AET), ...
    """

    def command_line(self, init: Path) -> str:
        """The kernel's."""
        words = [
            "console=ttyS0 quiet loglevel=5 panic=-1 nokaslr no_timer_check",
            # Code at one place in every process is translated once: one starts in half the time.
            "norandmaps",
            # Message interrupts are all we need, and to route the others takes a second and a half.
            "pci=noacpi",
            # The CPUs have one clock. To compare and to watch it takes two of them seconds.
            "tsc=reliable",
            "root=root rootfstype=9p "
            "rootflags=trans=virtio,version=9p2000.L,cache=loose,msize=512000 ro",
            f"init={init} fakerdt.max_rmid={self.rmids} fakerdt.closids={self.closids}",
            self.append,
        ]
        return " ".join(filter(None, words))

    def qemu(self, image: Path, directory: Path, share: Path, ports: Sequence[int]) -> list[str]:
        """Return QEMU's command. `ports`: the descriptors to which the guest's two ports go."""
        # Without what is slow to emulate, which libc would prefer: a tenth of the time
        cpu = "max,vendor=GenuineIntel,l3-cache=on,-avx,-avx2,-erms,-fsrm"
        topology = f"{self.smp},sockets={self.sockets},cores={self.smp // self.sockets},threads=1"
        return [
            QEMU,
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-M",
            "pc,usb=off",
            # CPUs that wait for each other would do so on a busy host, at its cost.
            "-accel",
            "tcg,thread=single",
            "-icount",
            f"shift={self.shift},sleep=on",
            "-cpu",
            cpu,
            "-smp",
            topology,
            "-m",
            str(self.memory),
            "-kernel",
            str(image),
            "-append",
            self.command_line(directory / "run/guest-init"),
            *_directory("root", Path("/"), ",readonly=on"),
            *_directory("run", directory / "run"),
            *_directory("share", share),
            "-device",
            "virtio-rng-pci",
            "-device",
            "virtio-serial-pci,max_ports=4",
            *(word for number, port in enumerate(ports, 1) for word in _port(number, port)),
            "-chardev",
            f"file,id=console,path={_escaped(directory / 'console')}",
            "-serial",
            "chardev:console",
        ]


def run_in_guest(
    command: str | Sequence[str],
    vm: Vm | None = None,
    *,
    share: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    shown: Iterable[Path] = (),
    stdout: Output = None,
    stderr: Output = None,
) -> int:
    """The exit status of a command that runs as root in a new guest; text is for bash.

    Its output is passed on as it comes. `share`: the host's directory that is /tmp/share there,
    both may write. `shown`: paths below the host's /tmp or /run that are to be seen in the guest.
    Builds the kernel if there is none yet. Raises GuestFailed, GuestTimeout, and what
    kernel.ready() raises.
    """
    vm = vm or Vm()
    image = kernel.ready()
    text = command if isinstance(command, str) else shlex.join(command)
    with tempfile.TemporaryDirectory(prefix="resctrl-vm-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        _prepare(directory, text, vm, env or {}, cwd or Path.cwd(), shown)
        with _passed_on(stdout) as out, _passed_on(2 if stderr is None else stderr) as err:
            words = vm.qemu(image, directory, share or directory / "share", [out, err])
            is_late = _run_qemu(
                [*DIE_WITH_PARENT, *words], [out, err], directory / "qemu", vm.timeout
            )
        return _read_outcome(directory, is_late, vm)


@contextmanager
def _passed_on(target: Output) -> Iterator[int]:
    """Give the end of a pipe; what comes out of the other end goes to the target."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=target) as cat:
        assert cat.stdin is not None
        yield cat.stdin.fileno()


def _run_qemu(words: Sequence[str], ports: Sequence[int], log: Path, seconds: float) -> bool:
    """Run QEMU to its end; returns whether it had to be killed after so many seconds."""
    with log.open("wb") as file:
        null = subprocess.DEVNULL
        qemu = subprocess.Popen(
            words, stdin=null, stdout=null, stderr=file, pass_fds=ports, env={**os.environ}
        )
    try:
        qemu.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    finally:
        qemu.kill()
        qemu.wait()
    return False


def _directory(tag: str, path: Path, more: str = "") -> tuple[str, str]:
    options = (
        f"path={_escaped(path)},mount_tag={tag},security_model=passthrough,multidevs=remap{more}"
    )
    return "-virtfs", f"local,{options}"


def _port(number: int, descriptor: int) -> tuple[str, ...]:
    chardev = f"file,id=port{number},path=/dev/fd/{descriptor}"
    return "-chardev", chardev, "-device", f"virtserialport,chardev=port{number},nr={number}"


def _escaped(path: Path) -> str:
    return str(path).replace(",", ",,")


def _prepare(
    directory: Path, command: str, vm: Vm, env: Mapping[str, str], cwd: Path, shown: Iterable[Path]
) -> None:
    """What guest-init finds in /run/vm."""
    (directory / "share").mkdir()
    run = directory / "run"
    run.mkdir()
    shutil.copy(HERE / "guest-init", run)
    (run / "guest-init").chmod(0o755)
    settings = {
        "VM_MOUNT": "yes" if vm.mount else "",
        "VM_SYSTEMD": "yes" if vm.systemd else "",
        "VM_MOUNT_OPTIONS": vm.mount_options,
        "VM_CWD": str(cwd),
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    lines.append(f"VM_ENVIRONMENT=({shlex.join(f'{name}={value}' for name, value in env.items())})")
    (run / "settings").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (run / "command").write_text(command + "\n", encoding="utf-8")
    hidden = {
        path
        for path in map(Path.resolve, [ROOT, Path(sys.prefix), cwd, *shown])
        if _is_hidden(path)
    }
    (run / "shown").write_text("".join(f"{path}\n" for path in sorted(hidden)), encoding="utf-8")


def _is_hidden(path: Path) -> bool:
    """The guest has its own of these."""
    return path.is_relative_to("/tmp") or path.is_relative_to("/run")


def _read_outcome(directory: Path, is_late: bool, vm: Vm) -> int:
    rc = directory / "run" / "rc"
    if rc.exists() and (text := rc.read_text(encoding="ascii").strip()):
        return int(text)
    if is_late:
        raise GuestTimeout(f"timed out after {vm.timeout:g} s")
    last = [_tail(directory / "qemu"), _tail(directory / "console")]
    raise GuestFailed(
        "\n".join(filter(None, ["the guest did not run the command to its end", *last]))
    )


def _tail(path: Path, lines: int = 15) -> str:
    if not path.exists():
        return ""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.kernel.vm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for knob in fields(Vm):
        flag, default = f"--{knob.name.replace('_', '-')}", knob.default
        if isinstance(default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default, help=f"[{default}]")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    given = parser.parse_args(arguments)
    vm = Vm(**{knob.name: getattr(given, knob.name) for knob in fields(Vm)})
    try:
        return run_in_guest(given.command[0] if len(given.command) == 1 else given.command, vm)
    except (kernel.CannotBuild, GuestFailed, GuestTimeout) as error:
        print(f"vm: {error}", file=sys.stderr)
        return 124 if isinstance(error, GuestTimeout) else 125


if __name__ == "__main__":
    sys.exit(main())
