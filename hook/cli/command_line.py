# SPDX-License-Identifier: Apache-2.0
"""Runs the command line of a person: --help, --version and the commands.

All of it follows from the tables of options.py and verbs.py. A container's start never imports
this. The exit status is 0, or 2 with a line on stderr; 1 if `doctor` finds a failure, or
`reconcile`, `view --once` or `uninstall` leaves work. Those of `run`, `assign` and `release` are in
verbs.JOB_STATUSES; 126 and 127 are those of a shell.
"""

from __future__ import annotations

import argparse
import gc
import gettext
import os
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NoReturn

from hook import __version__, report, system
from hook.cli.options import ARGUMENTS, make_row
from hook.cli.verbs import (
    HOOK,
    JOB_STATUSES,
    OF_JOBS,
    VERBS,
    WRITERS,
    Ended,
    Request,
    Usage,
    Verb,
    limit_time,
)
from hook.entry import STAGES, STDIN_LIMIT, STDIN_PATIENCE, parse
from hook.models import Options
from hook.node import command, engines, hooksd
from hook.rare import as_hook_error
from hook.show import write
from hook.words import explain

_NAME = "resctrl-mon-hook"
_HELP = ("help", "--help", "-h")
# argparse would read translations from where LANGUAGE says, which may be a FIFO.
gettext.find = lambda *_args, **_options: None  # type: ignore[assignment]


def main(arguments: list[str], began: float | None = None) -> int:
    """Run a command line.

    An unknown command with an OCI state on stdin is a misspelt hook, and exits 0.

    The time limit of a command counts from when the program `began` (system.monotonic).
    """
    name = arguments[0] if arguments else ""
    if name not in VERBS:
        return _report("", lambda: _answer(name, arguments))
    gc.enable()  # the file's start disabled it: top may run for long
    start = system.monotonic() if began is None else began
    executes = command.find_command(arguments[1:]) if name == "run" else []
    return _report(name, lambda: _run_command(name, arguments[1:], start), executes)


def _answer(name: str, arguments: list[str]) -> int:
    """Print the version or a help, or say that there is no such command."""
    if arguments == ["--version"]:
        write(f"{_NAME} {__version__}\n")
        return 0
    if any(word in _HELP for word in arguments):
        name = next((word for word in arguments if word not in _HELP), "")
        if (text := find_help(name)) is not None:
            write(text)
            return 0
    is_hook = arguments[:1] != ["help"] and _is_called_by_runtime()
    problem = f"unknown command {name[:80]!r}{_suggest(name[:80])}" if name else "no command"
    report.write_line(f"usage: {problem}; see {_NAME} --help", to_syslog=is_hook)
    return 0 if is_hook else 2


def _suggest(name: str) -> str:
    """Return a question with the command that a misspelt name looks like, or nothing."""
    from difflib import get_close_matches

    return "".join(
        f" (did you mean {word}?)" for word in get_close_matches(name, [*VERBS, *STAGES, *_HELP], 1)
    )


def _is_called_by_runtime() -> bool:
    """Return whether stdin looks like an OCI container state, valid JSON or not."""
    if os.isatty(0):
        return False
    text, _whole = system.try_call(system.read_stdin, STDIN_LIMIT, STDIN_PATIENCE) or (b"", False)
    return text.lstrip().startswith(b"{") and b'"ociVersion"' in text


def _run_command(name: str, words: list[str], began: float) -> int:
    given, request = parse_command(name, words)
    return _run_in_time(name, VERBS[name], given, request, began)


def _report(name: str, call: Callable[[], int], executes: Sequence[str] = ()) -> int:
    """Make a call, of this command if any, and return the exit status: 2,
    with a line on stderr, for each exception.

    After an exception this `executes` the command of `run`, if there is one,
    unless a user has interrupted the call.
    """
    status = 2
    try:
        return call()
    except SystemExit:  # the help is printed
        return 0
    except KeyboardInterrupt:
        problems, executes = ["interrupted"], ()
    except Usage as error:
        problems = [str(error)]
    except Exception as error:  # noqa: BLE001  a defect is one line, too, and no answer
        # The reader ended, for example `head`.
        if isinstance(error, BrokenPipeError) and not executes:
            return 0
        failure = as_hook_error("cannot read or write a file", error)
        # Install's Refused has several.
        problems = getattr(error, "problems", [str(explain(failure))])
        status = JOB_STATUSES.get(failure.reason, 2) if name and VERBS[name].defaults else 2
    for problem in problems:
        report.write_line(
            f"{problem}; {command.RUNS}" if executes else problem, to_syslog=bool(executes)
        )
    return command.start([*executes]) if executes else status


def _run_in_time(
    name: str, verb: Verb, given: argparse.Namespace, request: Request, began: float
) -> int:
    def run() -> int:
        has_options = name not in WRITERS and "run_dir" in verb.options
        return (
            verb.run(given, _add_options_of_files(name, given, request) if has_options else request)
            or 0
        )

    is_service = getattr(given, "listen", None) is not None or getattr(given, "follow", False)
    if verb.limit is None or is_service:
        return run()
    try:
        with limit_time(began + verb.limit.seconds, verb.limit.seconds):
            return run()
    except Ended as error:
        report.write_line(f"{name}: ended {error}: {verb.limit.undone}", to_syslog=False)
        return verb.limit.status


def _add_options_of_files(name: str, given: argparse.Namespace, request: Request) -> Request:
    """Add the options of the hook that are in the hooks.d files, and not on the command line.

    A job takes only OF_JOBS from there. It has a history if its run directory is the
    default one, or the hooks'. This prints a warning for each option that this command
    would take from there, and cannot.
    """

    def list_specs() -> list[str]:
        return [spec.path for spec in engines.read_containerd().specs if spec.is_in_force]

    named = getattr(given, "hooks_dir", None) or []
    directories = [*engines.list_hooks_dirs(), *([named] if isinstance(named, str) else named)]
    values, problems = hooksd.read_options(directories, list_specs)
    verb = VERBS[name]
    if verb.defaults:
        values = {
            **verb.defaults,
            **{option: values[option] for option in OF_JOBS if option in values},
        }
        if request.hook.run_dir not in (Options().run_dir, values.get("run_dir")):
            del values["history"]
    taken = OF_JOBS if verb.defaults else verb.options
    for subject, problem in problems.items():
        if "/" in subject or (subject in taken and subject not in request.given):
            report.write_line(f"warning: {problem}", to_syslog=False)
    values |= {option: getattr(request.hook, option) for option in request.given}
    return request._replace(hook=Options.model_validate(values))


# --- Arguments


class _Parser(argparse.ArgumentParser):
    """A parser of a command. Raises Usage."""

    def __init__(
        self, name: str, purpose: str, usage: str | None = None, epilog: str | None = None
    ) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(
            f"{_NAME} {name}", usage, purpose, epilog, formatter_class=form, allow_abbrev=False
        )
        self.problems: list[str] = []

    def error(self, message: str) -> NoReturn:
        raise Usage(f"{self.prog.partition(' ')[2]}: {message[:300]}; see {self.prog} --help")

    def print_help(self, file: object = None) -> None:  # noqa: ARG002  it is stdout
        write(self.format_help())


def make_parser(name: str) -> _Parser:
    """Make the parser of a command line: of the command's own arguments,
    and of those that it shares with others.
    """
    verb, own = VERBS[name], ARGUMENTS[name]
    call, _, why = own.example.rpartition(": ")
    parser = _Parser(name, own.purpose, epilog=f"example:\n  {_NAME} {call}\n      {why}")
    once = parser.add_mutually_exclusive_group() if verb.exclusive else parser
    for words, row in (*own.rows, *(make_row(option, verb.defaults) for option in verb.options)):
        (once if words[0][2:] in verb.exclusive else parser).add_argument(*words, **row)
    return parser


def parse_command(name: str, words: list[str]) -> tuple[argparse.Namespace, Request]:
    """Parse a command line: the command's own arguments, and what it shares with others.

    Raises Usage.

    Where a command of `run` runs whatever is wrong, this says what is wrong,
    and goes on without it.
    """
    verb, parser = VERBS[name], make_parser(name)
    words, executed = command.split_words(words) if name == "run" else (words, [])
    given, unknown = parser.parse_known_intermixed_args(words)
    if unknown:
        parser.problems.append(f"unrecognized arguments: {' '.join(unknown)}")
    if name == "run":
        if given.command:
            parser.problems.append("write -- before the command")
        given.command = executed or given.command
    is_json = getattr(given, "json", False) or getattr(given, "output", None) == "json"
    taken = [option for option in HOOK if option in verb.options]
    complaints = {word: parse([word])[1] for option in taken for word in getattr(given, option)}
    problems = [*parser.problems, *chain.from_iterable(complaints.values())]
    if problems and (not executed or given.strict):
        parser.error("; ".join(problems))
    for problem in problems:
        report.write_line(f"run: ignored: {problem[:300]}", to_syslog=False)
    valid = {
        option: [word for word in getattr(given, option) if not complaints[word]]
        for option in taken
    }
    of_hook = {option: found for option, found in valid.items() if found}
    return given, Request(parse([*chain.from_iterable(of_hook.values())])[0], of_hook, is_json)


# --- Help

_HOOK = """\
Puts a container's first process into the resctrl mon_group of its pod
(createRuntime), and removes the group after the pod's last container
(poststop). hooks.d calls `hook`, which takes the stage from the status in the
container's state. Always exits 0, except with --strict. Failures are in syslog
and in RUN-DIR/unmonitored. Needs Python 3.9 or newer.

The options are also those of reconcile, watch, install and base-runtime-spec.
"""
_TAIL = """\
  help COMMAND       explain a command; help hook: what runtimes call
  --version          show the version

list, show, top, history, metrics and doctor change nothing. The exit status is
0, or 2 on error; the manual has the others.
"""


def find_help(name: str) -> str | None:
    """Return the help about a command or stage, or without a name about the program,
    which fits 24 lines.

    The result is None if the name is neither.
    """
    if name in STAGES:
        parser = _Parser(
            name, _HOOK, usage=f"{_NAME} hook|createRuntime|poststop [OPTION...] < OCI-STATE"
        )
        for words, row in map(make_row, HOOK):
            parser.add_argument(*words, **row)
        return parser.format_help()
    if name in VERBS:
        return make_parser(name).format_help()
    commands = [f"  {command:<18} {ARGUMENTS[command].purpose}" for command in VERBS]
    return (
        None if name else "\n".join([f"usage: {_NAME} COMMAND [ARGUMENT...]", "", *commands, _TAIL])
    )
