# SPDX-License-Identifier: Apache-2.0
"""Says whether a container of the chart does its job:
ready.py install|reconcile|watch|view|metrics [OPTION...]

Exits with 0, or with 1 and a line that says why not, which `kubectl describe` shows. Kubelet
starts it again and again, so it imports as little as it can, and nothing of the program.
OPTION: of the hook, as --x=v.
"""

from __future__ import annotations

import os
import sys
import time

import mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

UNSUPPORTED = "/node/unsupported"
"""Written by the container `check`: why this node cannot monitor.

There is nothing to do there, and that is ready.
"""
INSTALLED = "/node/installed"
"""Made by the container `install`, and there while the program and its JSON are in place.

It has the JSON's time.
"""
SUPPORTED = "This node can monitor."
"""The message of `check` on every other node."""
LATEST = 180.0
"""Seconds since the last run of reconcile, or the last record of watch or view,
at most: three of each.
"""
UNCALLED = "no hook is called"
"""Begins the problem that `helm test` looks into by a pod."""
SETTLED = 60.0
"""Seconds after the JSON is written, in which a runtime may still start containers
as it knew hooksDir before.
"""
_RUN_DIR, _RESCTRL = "/run/resctrl-mon-hook", "/sys/fs/resctrl"
_HISTORY = "/var/log/resctrl-mon-hook/history.jsonl"
_PATIENCE = 5.0  # seconds for an answer of the endpoint
_NAMED = 3  # pods in a message


def find_problem(name: str, options: Sequence[str]) -> str | None:
    """Say why the container `name` does not do its job; None if it does."""
    places = dict(option.split("=", 1) for option in options if "=" in option)
    run_dir, resctrl = places.get("--run-dir", _RUN_DIR), places.get("--resctrl-root", _RESCTRL)
    if os.path.exists(UNSUPPORTED) or not can_monitor(resctrl):
        return None
    if name == "install":
        return (
            None
            if os.path.exists(INSTALLED)
            else "the program and its JSON are not in place as this pod installs them"
        )
    if not os.path.isdir(f"{resctrl}/mon_groups"):
        return f"resctrl is not mounted on the node: mount -t resctrl resctrl {resctrl}"
    log_dir = os.path.dirname(places.get("--history", _HISTORY)) if name != "view" else ""
    if problem := mounts.find_problem(run_dir) or (
        mounts.find_removal(log_dir) if log_dir else None
    ):
        return f"{problem}: this container starts again with the node's"
    if name == "reconcile":
        age = find_age(f"{run_dir}/reconcile.json", "ended_at", "reconcile has not ended a run")
        return age or find_unhooked(f"{run_dir}/unhooked.json", places["--hooks-dir"])
    if name == "watch":
        return find_age(f"{run_dir}/watch.json", "alive_at", "watch has not written its record")
    if name == "view":
        return find_age(f"{run_dir}/view.json", "alive_at", "view has not made all files")
    return find_counter(f"{resctrl}/mon_data") or ask(os.environ["METRICS"])


def can_monitor(resctrl: str) -> bool:
    """Return whether the machine has resctrl with monitoring.

    Before it is mounted, its directory says so.
    """
    return os.path.isdir(resctrl) and (
        os.path.isdir(f"{resctrl}/mon_groups") or not os.path.isdir(f"{resctrl}/info")
    )


def find_age(file: str, field: str, what: str) -> str | None:
    """Say that the Unix time in this field of a record is too long ago; None if it is not.

    Raises OSError.
    """
    at = read_record(file).get(field)
    if at is None:
        return f"{what} yet: its log says why"
    age = abs(time.time() - at)
    return f"{what} for {age:.0f} s: its log says why" if age > LATEST else None


def find_unhooked(file: str, hooks_dir: str) -> str | None:
    """Say that the runtime calls no hook, by what reconcile has recorded;
    None if it does, or that is unknown.

    The last container that started on the node must have a record, unless it started before the
    JSON was there. So a container that was started without the hook is no reason any more once a
    later one had it, or once it is adopted.
    """
    record = read_record(file)
    last = record.get("last_started_at")
    try:
        since = os.stat(INSTALLED).st_mtime
    except FileNotFoundError:
        return None  # `install` says so
    if last is None or last < since + SETTLED:
        return None
    number = len(record["containers"])
    pods = sorted(
        {container.get("uid") or name for name, container in record["containers"].items()}
    )
    more = ", ..." if len(pods) > _NAMED else ""
    return (
        f"{UNCALLED}: {number} containers run without it, and none that started later has it. "
        "Does the runtime "
        f"read hooksDir={hooks_dir}? containerd, k3s: does the hook-injector run, and see the "
        "program? They are of "
        f"the pods with the UIDs {', '.join(pods[:_NAMED])}{more} (the log of reconcile has all)"
    )


def read_record(file: str) -> dict[str, Any]:
    """Return a record of reconcile, watch or view; an empty one if there is none.

    Raises OSError.
    """
    import json  # noqa: PLC0415  only what needs it pays for it

    try:
        with open(file, encoding="utf-8") as text:
            record: dict[str, Any] = json.load(text)
            return record
    except (FileNotFoundError, ValueError):
        return {}


def find_counter(directory: str) -> str | None:
    """Find a counter of the node; say that there is none, else None. Raises OSError.

    It is not read, since the hardware may have no data yet. A domain has directories,
    too (sub-NUMA clusters).
    """
    for domain in os.listdir(directory):
        if any(entry.is_file() for entry in os.scandir(f"{directory}/{domain}")):
            return None
    return f"{directory} has no counters"


def ask(arguments: str) -> str | None:
    """Say why the endpoint with these arguments does not answer; None if it does.

    This measures nothing.
    """
    import socket  # noqa: PLC0415

    host, port = find_address(arguments)
    try:
        with socket.create_connection((host, port), _PATIENCE) as client:
            client.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
            answer = client.recv(64)
    except OSError as error:
        return f"the endpoint does not answer at {host} port {port}: {error}"
    return None if b" 200 " in answer else f"the endpoint answers {answer!r}"


def find_address(arguments: str) -> tuple[str, int]:
    """Return the address at which the endpoint with these arguments listens."""
    (listen,) = (word for word in arguments.split() if word.startswith("--listen="))
    host, _, port = listen.partition("=")[2].rpartition(":")
    return host.strip("[]"), int(port)


def main(arguments: Sequence[str]) -> int:
    try:
        problem = find_problem(arguments[0], arguments[1:])
    except OSError as error:
        problem = str(error)
    print(problem or "ready")
    return problem is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
