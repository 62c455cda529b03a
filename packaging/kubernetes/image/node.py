# SPDX-License-Identifier: Apache-2.0
"""The entry point of the chart's containers:
node.py VERB --prefix DIR --hooks-dir DIR --release NAME [OPTION...]

check           say why this node cannot monitor, for `kubectl describe` and the other containers;
                exit with 0
install         write the program and its JSON onto the host, and look whether they stay; its end
                changes nothing there
reconcile       run reconcile once a minute, with sums by the labels in $SUM_LABELS
watch           run watch
view            run view
history         print what ends as it ends, as JSON
metrics         serve metrics, with the arguments in $METRICS
remove-json     remove the JSON, so that no new container gets the hook
remove-program  end all keys, and put a stub into the place of the program, which containers call
                until they end
uninstall       run the last two on each node, by Jobs: see cluster.py
test            prove that nodes meter: see trial.py

NAME: the Helm release, after its namespace and a slash. OPTION: of the hook, as --x=v; $NODE_NAME,
if set, is its --node. On failure it exits with 1 and a line that says why. On a node that cannot
monitor install, reconcile, watch and view only wait for a signal.
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hook import __main__ as program
from hook.errors import HookError
from hook.install.install import Refused
from hook.node import files, paths
from hook.words import explain

import host
import mounts
import privileges
import runtime
from ready import INSTALLED, SUPPORTED, UNSUPPORTED, find_address

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import NoReturn

EVERY = 60.0  # seconds between two reconciles, as in the systemd timer
LONGEST = 50.0  # seconds that one may take, as in the systemd unit
LOOK = 10.0  # seconds between two looks at what is on the host, and at what is mounted here
MESSAGE = "/dev/termination-log"
_MARK = "RESCTRL_MON_HOOK_CONFINED"
_NOWHERE = "/node/no-resctrl"  # as --resctrl-root: metrics of a node that cannot monitor


def check(node: host.Host) -> None:
    message = SUPPORTED
    if reasons := node.find_unfit():
        message = "\n".join([*reasons, "Nothing is installed. Delete this pod to look again."])
        Path(UNSUPPORTED).write_text(message, encoding="utf-8")
    else:
        Path(UNSUPPORTED).unlink(missing_ok=True)
    print(message)
    _leave_message(message)


def install(node: host.Host) -> None:
    _wait_if_unsupported()
    mark = Path(INSTALLED)
    mark.unlink(missing_ok=True)  # of this container before it started again
    for line in node.install() or ["everything is in place"]:
        print(line)
    while True:
        if node.is_installed():
            mark.touch()
            os.utime(mark, (node.installed_at, node.installed_at))
        else:
            mark.unlink(missing_ok=True)
        time.sleep(LOOK)


def reconcile(node: host.Host) -> None:
    _wait_if_unsupported()
    _confine()
    _follow_directories(node.parsed.run_dir, node.parsed.history)
    while True:
        _reconcile_once(node)
        time.sleep(EVERY)


def watch(node: host.Host) -> None:
    _wait_if_unsupported()
    _confine(privileges.NET_ADMIN)
    _follow_directories(node.parsed.run_dir, node.parsed.history)
    _end_with(program.dispatch(["watch", *node.options]))


def view(node: host.Host) -> None:
    _wait_if_unsupported()
    _follow_directories(node.parsed.run_dir)
    _end_with(program.dispatch(["view", *_name_places(node, node.parsed.resctrl_root)]))


def history(_node: host.Host) -> None:
    """Follow the history, from an hour ago on.

    What ended while the pod was replaced comes, too; some of it twice.
    """
    _follow_directories(history=paths.HISTORY)
    _end_with(program.dispatch(["history", "--follow", "--json", "--since=1h"]))


def metrics(node: host.Host) -> None:
    options = node.parsed
    root = _NOWHERE if os.path.exists(UNSUPPORTED) else options.resctrl_root
    places = [*_name_places(node, root), f"--group-prefix={options.group_prefix}"]
    _check_port(*find_address(os.environ["METRICS"]))
    _follow_directories(options.run_dir, options.history)
    _end_with(program.dispatch(["metrics", *places, *os.environ["METRICS"].split()]))


def remove_json(node: host.Host) -> None:
    for line in node.remove_json():
        print(line)


def remove_program(node: host.Host) -> None:
    _confine()
    for line in node.remove_program() or [
        f"nothing to do: {node.program} belongs to another installation"
    ]:
        print(line)


def uninstall(_node: host.Host) -> None:
    import cluster  # noqa: PLC0415  the client of the API server takes 60 MB, which the DaemonSet's containers do without

    cluster.uninstall()


def test(_node: host.Host) -> None:
    import trial  # noqa: PLC0415  as above

    trial.test()


VERBS: dict[str, Callable[[host.Host], None]] = {
    "check": check,
    "install": install,
    "reconcile": reconcile,
    "watch": watch,
    "view": view,
    "history": history,
    "metrics": metrics,
    "remove-json": remove_json,
    "remove-program": remove_program,
    "uninstall": uninstall,
    "test": test,
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False, allow_abbrev=False)
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--hooks-dir", required=True)
    parser.add_argument("--release", required=True)
    given, words = parser.parse_known_args(arguments)
    if name := os.environ.get("NODE_NAME"):
        words.append(f"--node={name}")
    try:
        before = float(os.environ.get("REMOVED_AT") or "inf")
        VERBS[given.verb](
            host.Host(given.prefix, given.hooks_dir, tuple(words), given.release, before)
        )
    except (Refused, HookError, OSError) as error:
        return _report(str(explain(error) if isinstance(error, HookError) else error))
    return 0


def _name_places(node: host.Host, resctrl_root: str) -> list[str]:
    return [f"--resctrl-root={resctrl_root}", f"--run-dir={node.parsed.run_dir}"]


def _check_port(host: str, port: int) -> None:
    """Raise Refused if the port is in use, which it can be on the network of the node."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                remedy = "write another one into the chart's values, from 1024 to 65535"
                raise Refused(
                    f"metrics.port={port} is in use on this node, at {host}; remedy: {remedy}"
                ) from None


# --- Nodes that cannot monitor, and directories that are lost


def _wait_if_unsupported() -> None:
    """Say why this node cannot monitor, and wait for a signal; return if it can."""
    if os.path.exists(UNSUPPORTED):
        print(files.read_text(UNSUPPORTED, files.CONFIGURATION))
        while True:
            signal.pause()


def _follow_directories(run_dir: str = "", history: str = "") -> None:
    """End this container once a directory is not the node's any more.

    The kubelet starts it again, with the node's.
    """
    log_dir = os.path.dirname(history)

    def find_problem() -> str | None:
        problem = mounts.find_problem(run_dir) if run_dir else None
        return problem or (mounts.find_removal(log_dir) if log_dir else None)

    def follow() -> None:
        while True:
            # Of a look, which the next one gets right; readiness names one that stays.
            with suppress(OSError):
                if problem := find_problem():
                    _end_with(_report(f"{problem}: this container starts again with the node's"))
            time.sleep(LOOK)

    threading.Thread(target=follow, daemon=True).start()


# --- Processes

_child: subprocess.Popen[bytes] | None = None


def _confine(*more: int) -> None:
    """Start again in the host's cgroup namespace,
    with the capabilities of reconcile and `more` only.
    """
    if _MARK not in os.environ:
        privileges.join_hosts_cgroups()
        privileges.keep(privileges.DAC_OVERRIDE, *more)
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, _MARK: "1"})  # noqa: S606  ourselves
    if not privileges.is_in_hosts_cgroups():
        raise Refused(
            "not in the host's cgroup namespace: reconcile would take containers' tasks for "
            "strangers"
        )


def _reconcile_once(node: host.Host) -> None:
    """Run reconcile, which reports by itself.

    A failure is ignored, since the next run follows in a minute.
    """
    global _child  # noqa: PLW0603  for _end, which a signal calls
    if not os.path.isdir(f"{node.resctrl_root}/mon_groups"):
        # The systemd unit is skipped then, too: not mounted (yet), or a machine that cannot
        # monitor.
        return
    command = [host.SHIPPED, "reconcile", *node.options, *_adopt(), *list_sums()]
    _child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        _child.wait(LONGEST)
    except subprocess.TimeoutExpired:  # it can be killed at any point
        _report(f"reconcile has not ended after {LONGEST:.0f} s")
        _child.kill()
        _child.wait()


def list_sums() -> list[str]:
    """Return the options by which reconcile adds up by the labels in $SUM_LABELS."""
    return [f"--sum-label={name}" for name in os.environ.get("SUM_LABELS", "").split()]


def _adopt() -> list[str]:
    """Return the options by which reconcile adopts, if the chart's value says so;
    remove what is left of ended ones.
    """
    if not os.path.isdir(runtime.BUNDLES):
        return []
    runtime.write_program()
    for container in {*os.listdir(runtime.BUNDLES)} - {os.path.basename(runtime.PROGRAM)}:
        if not any(os.path.isdir(f"{root}/{container}") for root in runtime.ROOTS):
            shutil.rmtree(f"{runtime.BUNDLES}/{container}")
    return ["--adopt", *(f"--runtime-root={root}" for root in runtime.ROOTS)]


def _end(_signal: int, _frame: FrameType | None) -> None:
    _end_with(0)


def _end_with(status: int) -> NoReturn:
    """End at once: each step on the host is done or not begun, never half done.

    Nor does Python end the thread that follows the directories: it would do so by pthread_exit(3),
    which aborts where there is no libgcc_s.
    """
    if _child is not None:
        _child.kill()
    os._exit(status)


def _report(problem: str) -> int:
    """Print a problem, and leave it for `kubectl describe`; returns the exit status."""
    print(f"resctrl-mon-hook: {problem}", file=sys.stderr)
    _leave_message(problem)
    return 1


def _leave_message(text: str) -> None:
    """Leave a message for `kubectl describe`, which shows it once the container has ended."""
    with suppress(OSError):
        Path(MESSAGE).write_text(text, encoding="utf-8", errors="replace")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)  # the init of a pid namespace would ignore it
    sys.exit(main(sys.argv[1:]))
