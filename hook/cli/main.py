# SPDX-License-Identifier: Apache-2.0
"""Answers a person: --help, --version and the commands. A container's start never imports this."""

from __future__ import annotations

import gc
import os
import sys

from hook import __version__
from hook.base import system
from hook.cli import help_text
from hook.stages import failures

_STATE_LIMIT = 4 << 20
_PATIENCE = 10.0  # seconds: as on the hook path


def main(arguments: list[str]) -> int:
    """Answer a person. An unknown command with an OCI state on stdin is a misspelt hook: it exits 0."""
    if "--help" in arguments or "-h" in arguments or arguments[:1] == ["help"]:
        verb = next((word for word in arguments if word in help_text.HELP_OF_COMMANDS), None)
        sys.stdout.write(help_text.format_command_help(verb) if verb else help_text.format_help())
        sys.stdout.flush()
        return 0
    if arguments == ["--version"]:
        sys.stdout.write(f"resctrl-mon-hook {__version__}\n")
        sys.stdout.flush()
        return 0
    if arguments and arguments[0] == "watch":
        from hook.cli import watch_command  # noqa: PLC0415  it does not need what the other commands do

        gc.enable()
        return watch_command.main(arguments[1:])
    if arguments and arguments[0] in help_text.HELP_OF_COMMANDS:
        from hook.cli import commands  # noqa: PLC0415  a misspelt hook does not need them

        gc.enable()  # the file's start disabled it: top may run for long
        return commands.main(arguments)
    problem = f"unknown command {arguments[0][:80]!r}" if arguments else "no command"
    is_hook = _is_called_by_runtime()
    failures.say(f"usage: {problem}; see resctrl-mon-hook --help", to_syslog=is_hook)
    return 0 if is_hook else 2


def _is_called_by_runtime() -> bool:
    """Whether stdin looks like an OCI container state, valid JSON or not."""
    if os.isatty(0):
        return False
    try:
        text, _whole = system.read_stdin(_STATE_LIMIT, _PATIENCE)
    except OSError:
        return False
    return text.lstrip().startswith(b"{") and b'"ociVersion"' in text
