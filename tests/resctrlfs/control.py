# SPDX-License-Identifier: Apache-2.0
"""The control socket: one JSON request per line, one JSON answer per line.

Requests are objects with `do`, the name of a method of Control without `do_`, and that method's arguments.
Answers are {"ok": true, "result": ...} or {"ok": false, "error": "..."}.
"""

from __future__ import annotations

import errno
import json
import socket
import threading
from pathlib import Path
from typing import Any

from tests.resctrlfs.model import Group, Injection
from tests.resctrlfs.server import ResctrlOperations


class Control:
    """Groups are named by their path below the mount: "/", "/gold", "/gold/mon_groups/x"."""

    def __init__(self, operations: ResctrlOperations) -> None:
        self._operations = operations
        self._model = operations.model

    def answer(self, line: str) -> str:
        try:
            request: dict[str, Any] = json.loads(line)
            method = getattr(self, "do_" + request.pop("do"))
            with self._operations.guard:
                result = method(**request)
        except Exception as error:  # noqa: BLE001  (whatever it is, the test that asked is the one to hear of it)
            return json.dumps({"ok": False, "error": f"{type(error).__name__}: {error}"})
        return json.dumps({"ok": True, "result": result})

    def do_set(self, **knobs: object) -> None:
        """counters, decay_ms, read_only."""
        self._model.set_knobs(**knobs)

    def do_unmount(self) -> None:
        """As umount(8) on the host: every group is gone, and what is left is an empty directory."""
        self._model.unmount()

    def do_mount(self) -> None:
        self._model.mount()

    def do_inject(self, op: str, error: str, path: str = "", times: int = 1, after: int = 0) -> None:
        """Fail `op` (a method of ResctrlModel: mkdir, rmdir, rename, open, read, write, listdir, ...).

        `error` is the errno's name, or "": it stops; `path`, `times` and `after` are as in Injection.
        """
        number = getattr(errno, error) if error else 0
        self._model.injections.append(Injection(op, path, number, times, after))

    def do_clear(self) -> None:
        """Take back all injections."""
        self._model.injections.clear()

    def do_settle(self) -> None:
        """Let every RMID leave limbo now."""
        self._model.rmids.settle()

    def do_set_counter(self, group: str, domain: str, event: str, value: object) -> None:
        self._model.set_counter(group, domain, event, value)

    def do_add(self, group: str, domain: str, event: str, amount: object) -> None:
        self._model.add(group, domain, event, amount)

    def do_offline(self, domain: str) -> None:
        """The domain's last CPU goes offline: its directory is gone from every mon_data."""
        self._model.counters.offline(domain)

    def do_online(self, domain: str) -> None:
        """One of its CPUs is back."""
        self._model.counters.online(domain)

    def do_run(self, tid: int, package: int) -> None:
        """A task runs on a package."""
        self._model.run(tid, package)

    def do_grow(self, amount: object) -> None:
        """Add to every counter of every group that has tasks."""
        self._model.grow(amount)

    def do_cpu_resctrl_groups(self, tid: int) -> str:
        return self._model.cpu_resctrl_groups(tid)

    def do_state(self) -> dict[str, Any]:
        """All groups, with their tasks, and the free RMIDs."""
        model = self._model
        model.rmids.look()
        groups = model.groups() if model.mounted else []
        return {
            "groups": list(map(self._group, groups, model.tids_of(groups))),
            "free": list(model.rmids.free),
        }

    def _group(self, group: Group, tids: list[int]) -> dict[str, Any]:
        return {
            "path": group.path.rstrip("/") or "/",
            "closid": group.closid,
            "rmid": group.rmid,
            "tasks": tids,
        }


def listen(path: Path, control: Control) -> None:
    """Serve the socket from a thread of its own, and each connection from another."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    threading.Thread(target=_accept, args=(server, control), daemon=True).start()


def _accept(server: socket.socket, control: Control) -> None:
    while True:
        connection, _ = server.accept()
        threading.Thread(target=_serve, args=(connection, control), daemon=True).start()


def _serve(connection: socket.socket, control: Control) -> None:
    with connection, connection.makefile("rw", encoding="utf-8") as stream:
        for line in stream:
            stream.write(control.answer(line) + "\n")
            stream.flush()
