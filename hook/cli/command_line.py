# SPDX-License-Identifier: Apache-2.0
"""Runs the command line of a person: --help, --version and the commands.

All of it follows from the models of options.py and the table of verbs.py. A container's start never imports this. The
exit status is 0, or 2 with a line on stderr; 1 if `doctor` finds a failure, or `reconcile`, `view --once` or
`uninstall` leaves work. Those of `run`, `assign` and `release` are in verbs.JOB_STATUSES; 126 and 127 are those of a
shell.
"""

from __future__ import annotations

import argparse
import gc
import gettext
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from hook import __version__, names, report, system
from hook.cli.options import ARGUMENTS
from hook.cli.verbs import HOOK, JOB_STATUSES, PLACES, VERBS, WRITERS, Ended, Request, Usage, Verb, limit_time
from hook.entry import STAGES, STDIN_LIMIT, STDIN_PATIENCE, convert, validate
from hook.errors import as_hook_error
from hook.models import Options
from hook.node import command, engines, hooksd
from hook.show import write
from hook.words import explain

_NAME = "resctrl-mon-hook"
_HELP = ("help", "--help", "-h")
# argparse would read translations from where LANGUAGE says, which may be a FIFO.
gettext.find = lambda *_args, **_options: None  # type: ignore[assignment]


def main(arguments: list[str], began: float | None = None) -> int:
    """Run a command line. An unknown command with an OCI state on stdin is a misspelt hook, and exits 0.

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

    return "".join(f" (did you mean {word}?)" for word in get_close_matches(name, [*VERBS, *STAGES, *_HELP], 1))


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
    """Make a call, of this command if any, and return the exit status: 2, with a line on stderr, for each exception.

    After an exception this `executes` the command of `run`, if there is one, unless a user has interrupted the call.
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
        if isinstance(error, BrokenPipeError) and not executes:  # the reader ended, for example `head`
            return 0
        failure = as_hook_error("cannot read or write a file", error)
        problems = getattr(error, "problems", [str(explain(failure))])  # install's Refused has several
        status = JOB_STATUSES.get(failure.reason, 2) if name and VERBS[name].defaults else 2
    for problem in problems:
        report.write_line(f"{problem}; {command.RUNS}" if executes else problem, to_syslog=bool(executes))
    return command.start([*executes]) if executes else status


def _run_in_time(name: str, verb: Verb, given: Any, request: Request, began: float) -> int:  # noqa: ANN401  its own model
    def run() -> int:
        has_options = name not in WRITERS and "run_dir" in verb.options
        return verb.run(given, _add_options_of_files(name, given, request) if has_options else request) or 0

    if verb.limit is None or (name == "metrics" and given.listen is not None):
        return run()
    try:
        with limit_time(began + verb.limit.seconds, verb.limit.seconds):
            return run()
    except Ended as error:
        report.write_line(f"{name}: ended {error}: {verb.limit.undone}", to_syslog=False)
        return verb.limit.status


def _add_options_of_files(name: str, given: Any, request: Request) -> Request:  # noqa: ANN401  as above
    """Add the options of the hook that are in the hooks.d files, and not on the command line.

    A job takes only the places from there. It has a history if its run directory is the default one, or the hooks'.
    This prints a warning for each option that this command would take from there, and cannot.
    """

    def list_specs() -> list[str]:
        return [spec.path for spec in engines.read_containerd().specs if spec.is_in_force]

    named = getattr(given, "hooks_dir", None) or []
    directories = [*engines.list_hooks_dirs(), *([named] if isinstance(named, str) else named)]
    values, problems = hooksd.read_options(directories, list_specs)
    verb = VERBS[name]
    if verb.defaults:
        values = {**verb.defaults, **{place: values[place] for place in PLACES if place in values}}
        if request.hook.run_dir not in (Options().run_dir, values.get("run_dir")):
            del values["history"]
    taken = PLACES if verb.defaults else verb.options
    for subject, problem in problems.items():
        if "/" in subject or (subject in taken and subject not in request.given):
            report.write_line(f"warning: {problem}", to_syslog=False)
    values |= {option: getattr(request.hook, option) for option in request.given}
    return request._replace(hook=Options.model_validate(values))


# --- Arguments


class Argument:
    """An argument of a command: an option, or (`name` in capitals) a word without `--`."""

    def __init__(self, row: tuple[Any, ...]) -> None:
        # `kind` is a value of the type that it takes; `value` the placeholder in the help, empty if it takes no value.
        self.name, self.kind, default, self.value, self.choices, self.meaning = row[:6]
        self.is_option = not self.name.isupper()
        self.word = "--" + self.name.replace("_", "-") if self.is_option else self.value
        self.shown_default = "" if default is None or default is False or default in ("", [], {}) else f" [{default}]"

    def __str__(self) -> str:
        return f"{self.word}={self.value}" if self.is_option and self.value else self.word

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Add it to a parser."""
        words, more = [self.name], dict[str, Any](help=self.meaning + self.shown_default)
        if self.is_option:
            words = [self.word, "-o"] if self.name == "output" else [self.word]
            more |= {"action": _Convert, "const": self.kind, "default": argparse.SUPPRESS}
        elif self.kind == []:
            more["nargs"] = "*"
        elif self.choices == (self.value,):
            more["nargs"] = "?"
        more |= {"nargs": 0} if self.kind is False else {"choices": self.choices or None, "metavar": self.value}
        parser.add_argument(*words, **more)


class _Convert(argparse.Action):
    """Converts the text of an option to the type of its `const`, and notes the word, or what is wrong with it."""

    def __call__(self, parser: Any, namespace: object, text: Any, _option: str | None = None) -> None:  # noqa: ANN401
        word, former = self.option_strings[0], getattr(namespace, self.dest, None)
        if text == []:  # a flag has no value; and argparse takes `--` away from --option=-- before Python 3.13
            text = "" if self.nargs == 0 else "--"
        try:
            value: Any = convert(self.const, former, text)
            if self.dest == "label":
                _check_label(text, former or {})
        except ValueError as error:
            parser.problems.append(f"{word}: {error}")
        else:
            setattr(namespace, self.dest, value)
            parser.words.setdefault(self.dest, []).append(word if self.nargs == 0 else f"{word}={text}")


def _check_label(text: str, former: Mapping[str, str]) -> None:
    """Check a label, NAME=VALUE. Raises ValueError."""
    name, _, value = text.partition("=")
    try:
        names.check_label(name)
        names.check_label_value(value)
        if former.get(name, value) != value:
            raise ValueError("one name has two values")
    except ValueError as error:
        raise ValueError(f"{text[:80]!r}: {error}") from None


def list_arguments(verb: Verb) -> list[Argument]:
    """List a command's own arguments, without the options of the hook."""
    return [Argument(row) for row in ARGUMENTS[verb.form.__name__][2]]


def list_options(names: tuple[str, ...] = HOOK, defaults: Mapping[str, Any] = {}) -> list[Argument]:
    """List the shared options of these `names`: those of the hook, with a command's own `defaults`, and --json."""
    json = ("json", False, False, "", (), "print JSON, one object on a line")
    rows = [row for row in (*ARGUMENTS["Options"][2], json) if row[0] in names]
    return [Argument((*row[:2], defaults.get(row[0], row[2]), *row[3:])) for row in rows]


class _Parser(argparse.ArgumentParser):
    """A parser of a command. Raises Usage."""

    def __init__(self, name: str, purpose: str, usage: str | None = None, epilog: str | None = None) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(f"{_NAME} {name}", usage, purpose, epilog, formatter_class=form, allow_abbrev=False)
        self.problems: list[str] = []
        self.words: dict[str, list[str]] = {}  # the options, as they were written, by name

    def error(self, message: str) -> NoReturn:
        raise Usage(f"{self.prog.partition(' ')[2]}: {message[:300]}; see {self.prog} --help")

    def print_help(self, file: object = None) -> None:  # noqa: ARG002  it is stdout
        write(self.format_help())


def make_parser(name: str) -> _Parser:
    """Make the parser of a command line: of the command's own arguments, and of those that it shares with others."""
    verb = VERBS[name]
    purpose, example, _ = ARGUMENTS[verb.form.__name__]
    call, _, why = example.rpartition(": ")
    parser = _Parser(name, purpose, epilog=f"example:\n  {_NAME} {call}\n      {why}")
    once = parser.add_mutually_exclusive_group() if verb.exclusive else parser
    for argument in (*list_arguments(verb), *list_options(verb.options, verb.defaults)):
        argument.add_to(once if argument.name in verb.exclusive else parser)
    return parser


def parse_command(name: str, words: list[str]) -> tuple[Any, Request]:
    """Parse a command line: the command's own arguments, and what it shares with others. Raises Usage.

    Where a command of `run` runs whatever is wrong, this says what is wrong, and goes on without it.
    """
    verb, parser = VERBS[name], make_parser(name)
    words, executed = command.split_words(words) if name == "run" else (words, [])
    parsed, unknown = parser.parse_known_intermixed_args(words)
    values = vars(parsed)
    if unknown:
        parser.problems.append(f"unrecognized arguments: {' '.join(unknown)}")
    if values.get("COMMAND"):
        parser.problems.append("write -- before the command")
    if executed:
        values["COMMAND"] = executed
    is_json = values.pop("json", False) or values.get("output") == "json"
    of_hook = {option: values.pop(option) for option in HOOK if option in verb.options and option in values}
    options, given = (validate(form, part, parser.problems) for form, part in ((Options, of_hook), (verb.form, values)))
    if parser.problems and (not executed or given.strict):
        parser.error("; ".join(parser.problems))
    for problem in parser.problems:
        report.write_line(f"run: ignored: {problem[:300]}", to_syslog=False)
    return given, Request(options, {option: parser.words[option] for option in of_hook}, is_json)


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
    """Return the help about a command or stage, or without a name about the program, which fits 24 lines.

    The result is None if the name is neither.
    """
    if name in STAGES:
        parser = _Parser(name, _HOOK, usage=f"{_NAME} hook|createRuntime|poststop [OPTION...] < OCI-STATE")
        for option in list_options():
            option.add_to(parser)
        return parser.format_help()
    if name in VERBS:
        return make_parser(name).format_help()
    commands = [f"  {command:<18} {ARGUMENTS[verb.form.__name__][0]}" for command, verb in VERBS.items()]
    return None if name else "\n".join([f"usage: {_NAME} COMMAND [ARGUMENT...]", "", *commands, _TAIL])
