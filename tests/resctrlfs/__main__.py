# SPDX-License-Identifier: Apache-2.0
"""python -m tests.resctrlfs MOUNTPOINT --control SOCKET --log FILE [--KNOB=VALUE ...]

On the control socket each connection is for one request, a line of JSON, and its answer, another
one. Requests are objects with `do`, one of Control.actions, and its arguments. Answers are {"ok":
true, "result": ...} or {"ok": false, "error": "..."}. Groups are named by their path below the
mount: "/", "/gold", "/gold/mon_groups/x".

It runs until it is unmounted or gets SIGINT or SIGTERM. If the mount point is removed
under it, from another mount namespace, it makes that again, with socket and log, and
goes on with the same groups.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.resctrlfs.events import EventLog
from tests.resctrlfs.model import Injection, Knobs
from tests.resctrlfs.places import PlaceTaken, clear_mountpoint, listen
from tests.resctrlfs.server import ResctrlOperations, announce, serve


class Control:
    def __init__(self, operations: ResctrlOperations) -> None:
        self._guard = operations.guard
        self._operations = operations
        self._list_actions()

    def _list_actions(self) -> None:
        self._model = model = self._operations.model
        self.actions: dict[str, Callable[..., object]] = {
            "reset": self._reset,
            "set": model.set_knobs,
            "unmount": model.unmount,
            "mount": model.mount,
            "inject": self._inject,
            "forget": model.injections.clear,
            "settle": model.rmids.settle,
            "set_counter": model.set_counter,
            "add": model.add,
            "let_grow": model.let_grow,
            "offline": model.counters.offline,
            "online": model.counters.online,
            "run": model.run,
            "grow": model.grow,
            "cpu_resctrl_groups": model.cpu_resctrl_groups,
            "state": self._state,
        }

    def _reset(self, **knobs: Any) -> None:  # noqa: ANN401  each has its type
        """Go on as a server does that begins now, on another machine."""
        self._operations.begin(Knobs(**knobs))
        self._operations.log.clear()
        self._list_actions()

    def answer(self, line: str) -> str:
        try:
            request: dict[str, Any] = json.loads(line)
            action = self.actions[request.pop("do")]
            with self._guard:
                result = action(**request)
        except Exception as error:  # noqa: BLE001  the test that asked raises it
            return json.dumps({"ok": False, "error": f"{type(error).__name__}: {error}"})
        return json.dumps({"ok": True, "result": result})

    def _inject(
        self, op: str, error: str, path: str = "", times: int = 1, status: str = ""
    ) -> None:
        """Fail `op` (a method of ResctrlModel: mkdir, rmdir, open, read, write, listdir, ...).

        `error` is the errno's name, or "": it stops; `path`,
        `times` and `status` are as in Injection.
        """
        number = getattr(errno, error) if error else 0
        self._model.injections.append(Injection(op, path, number, times, status))

    def _state(self) -> dict[str, Any]:
        """All groups, with their tasks, and the free RMIDs."""
        model = self._model
        model.rmids.look()
        groups = model.groups() if model.mounted else []
        listed_groups = [
            {
                "path": group.path.rstrip("/") or "/",
                "closid": group.closid,
                "rmid": group.rmid,
                "tasks": tids,
            }
            for group, tids in zip(groups, model.tids_of(groups))
        ]
        return {"groups": listed_groups, "free": list(model.rmids.free)}


def serve_control(path: Path, control: Control) -> None:
    """Serve the socket from a thread, a request at a time. Errors: as places.listen."""
    server = listen(path)

    def answer_all() -> None:
        while True:
            connection, _ = server.accept()
            with (
                suppress(OSError),
                connection,
                connection.makefile("rw", encoding="utf-8") as stream,
            ):
                stream.write(control.answer(stream.readline()) + "\n")
                stream.flush()

    threading.Thread(target=answer_all, daemon=True).start()


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.resctrlfs", description=__doc__)
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("--control", type=Path, required=True, metavar="SOCKET")
    parser.add_argument("--log", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--until-eof", action="store_true", help="end when stdin does: no test is outlived"
    )
    for knob in dataclasses.fields(Knobs):
        flag = "--" + knob.name.replace("_", "-")
        if isinstance(knob.default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=knob.default)
        else:
            parser.add_argument(flag, type=type(knob.default), default=knob.default)
    return parser.parse_args(argv)


def end_at_eof() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # libfuse's handler unmounts


def main(argv: list[str]) -> int:
    options = arguments(argv)
    if os.geteuid() != 0:
        print("resctrlfs: only root can mount it for others", file=sys.stderr)
        return 2
    knobs = Knobs(**{knob.name: getattr(options, knob.name) for knob in dataclasses.fields(Knobs)})
    try:
        clear_mountpoint(options.mountpoint)
        operations = ResctrlOperations(knobs, options.log, lambda: announce(options.mountpoint))
        control = Control(operations)
        serve_control(options.control, control)
        if options.until_eof:
            threading.Thread(target=end_at_eof, daemon=True).start()
        serve(options.mountpoint, operations)
        while not options.mountpoint.exists():
            print(
                f"resctrlfs: {options.mountpoint} was removed: it is made and mounted again",
                file=sys.stderr,
            )
            options.mountpoint.mkdir(parents=True)
            operations.log = EventLog(options.log)
            if not options.control.exists():
                serve_control(options.control, control)
            serve(options.mountpoint, operations)
    except (PlaceTaken, OSError) as error:
        print(f"resctrlfs: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
