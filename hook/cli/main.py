# SPDX-License-Identifier: Apache-2.0
"""Runs the command line of a person: --help, --version and the commands. A container's start never imports this.

The exit status is 0, or 2 with a line on stderr; 1 if `doctor` finds a failure, or `reconcile` leaves an action undone.
"""

from __future__ import annotations

import gc
import os
from functools import partial

from hook.base import system
from hook.base.errors import HookError
from hook.cli import command_line, verbs
from hook.cli.verbs import VERBS, Usage
from hook.stages import report

_STATE_LIMIT = 4 << 20
_PATIENCE = 10.0  # seconds: as on the hook path


def main(arguments: list[str]) -> int:
    """Run a command line. An unknown command with an OCI state on stdin is a misspelt hook, and exits 0."""
    if "--help" in arguments or "-h" in arguments or arguments[:1] == ["help"]:
        verb = next((word for word in arguments if word in VERBS), None)
        verbs.write(command_line.format_command_help(verb) if verb else command_line.format_help())
        return 0
    if arguments == ["--version"]:
        from hook import __version__

        verbs.write(f"resctrl-mon-hook {__version__}\n")
        return 0
    if arguments and arguments[0] in VERBS:
        gc.enable()  # the file's start disabled it: top may run for long
        return _run_command(arguments[0], arguments[1:])
    problem = f"unknown command {arguments[0][:80]!r}" if arguments else "no command"
    is_hook = _is_called_by_runtime()
    report.say(f"usage: {problem}; see resctrl-mon-hook --help", to_syslog=is_hook)
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


def _run_command(name: str, words: list[str]) -> int:
    """Run a command; returns the exit status: 2, with a line on stderr, for each exception."""
    try:
        return _call(name, words) or 0
    except BrokenPipeError:  # the reader ended, for example `head`
        return 0
    except KeyboardInterrupt:
        problems = ["interrupted"]
    except Exception as error:  # noqa: BLE001  a defect is one line, too, and no answer
        problems = _explain(error)
    for problem in problems:
        report.say(problem, to_syslog=False)
    return 2


def _call(name: str, words: list[str]) -> int | None:
    verb = VERBS[name]
    given, options, hook_words = command_line.parse_command(name, words)
    command = partial(verb.run, given, options, hook_words)
    if verb.limit is None or (name == "metrics" and given.listen is not None):
        return command()
    from hook.cli import deadline

    return deadline.run_limited(name, verb.limit, command)


def _explain(error: Exception) -> list[str]:
    """Why a command failed. install's Refused has several problems."""
    if isinstance(error, (HookError, Usage)):
        return [str(error)]
    if hasattr(error, "problems"):
        return list(error.problems)
    from hook.base.explain import system_error, unforeseen_error

    if isinstance(error, OSError):
        return [str(system_error("cannot read or write a file", error))]
    return [str(unforeseen_error(error))]
