# SPDX-License-Identifier: Apache-2.0
"""The command `watch`. It runs for months: no other command's modules are imported here."""

from __future__ import annotations

from hook.cli import status
from hook.cli.parser import parse
from hook.watch import watch


def main(arguments: list[str]) -> int:
    """Run `watch` with the arguments behind it; returns the exit status."""

    def begin() -> None:
        options, _given = parse("watch", arguments)
        watch.run(options)

    return status.run(begin)
