# SPDX-License-Identifier: Apache-2.0
"""python -m tests.resctrlfs MOUNTPOINT --control SOCKET --log FILE [--KNOB=VALUE ...]"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import threading
from pathlib import Path

from tests.resctrlfs.control import Control, listen
from tests.resctrlfs.model import Knobs
from tests.resctrlfs.server import ResctrlOperations, announce, serve


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.resctrlfs", description=__doc__)
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("--control", type=Path, required=True, metavar="SOCKET")
    parser.add_argument("--log", type=Path, required=True, metavar="FILE")
    parser.add_argument("--until-eof", action="store_true", help="end when stdin does: no test is outlived")
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
    operations = ResctrlOperations(knobs, options.log, lambda: announce(options.mountpoint))
    listen(options.control, Control(operations))
    if options.until_eof:
        threading.Thread(target=end_at_eof, daemon=True).start()
    serve(options.mountpoint, operations)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
