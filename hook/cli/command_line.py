# SPDX-License-Identifier: Apache-2.0
"""Runs the command line of a person: --help, --version and the commands.

All of it follows from the models of options.py and the table of verbs.py. A container's start never imports this. The
exit status is 0, or 2 with a line on stderr; 1 if `doctor` finds a failure, or `reconcile` leaves an action undone.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from hook import __version__, report, system
from hook.cli.options import ARGUMENTS
from hook.cli.verbs import HOOK, SHARED, VERBS, WRITERS, Ended, Request, Usage, Verb, limit_time
from hook.entry import STAGES, STDIN_LIMIT, STDIN_PATIENCE, read_words, validate
from hook.errors import HookError, as_hook_error
from hook.models import Options, ValidationError
from hook.node import engines, hooksd
from hook.show.terminal import write

_NAME = "resctrl-mon-hook"


def main(arguments: list[str]) -> int:
    """Run a command line. An unknown command with an OCI state on stdin is a misspelt hook, and exits 0."""
    name = arguments[0] if arguments else ""
    if not {"--help", "-h"}.isdisjoint(arguments) or name == "help":
        name = next((word for word in arguments if word != "help" and not word.startswith("-")), "")
        if (text := find_help(name)) is not None:
            write(text)
            return 0
    elif arguments == ["--version"]:
        write(f"{_NAME} {__version__}\n")
        return 0
    elif name in VERBS:
        gc.enable()  # the file's start disabled it: top may run for long
        return _run_command(name, arguments[1:])
    is_hook = arguments[:1] != ["help"] and _is_called_by_runtime()
    problem = f"unknown command {name[:80]!r}" if name else "no command"
    report.say(f"usage: {problem}; see {_NAME} --help", to_syslog=is_hook)
    return 0 if is_hook else 2


def _is_called_by_runtime() -> bool:
    """Return whether stdin looks like an OCI container state, valid JSON or not."""
    if os.isatty(0):
        return False
    text, _whole = system.try_call(system.read_stdin, STDIN_LIMIT, STDIN_PATIENCE) or (b"", False)
    return text.lstrip().startswith(b"{") and b'"ociVersion"' in text


def _run_command(name: str, words: list[str]) -> int:
    """Run a command, and return its exit status: 2, with a line on stderr, for each exception."""
    try:
        given, request = parse_command(name, words, _read_hook_options(name, words))
        return _run_in_time(name, VERBS[name], given, request)
    except BrokenPipeError:  # the reader ended, for example `head`
        return 0
    except KeyboardInterrupt:
        problems = ["interrupted"]
    except Usage as error:
        problems = [str(error)]
    except (HookError, OSError) as error:
        problems = [str(report.explain(as_hook_error("cannot read or write a file", error)))]
    except Exception as error:  # noqa: BLE001  a defect is one line, too, and no answer
        problems = getattr(error, "problems", [str(report.explain(error))])  # install's Refused has several
    for problem in problems:
        report.say(problem, to_syslog=False)
    return 2


def _run_in_time(name: str, verb: Verb, given: Any, request: Request) -> int:  # noqa: ANN401  its own model
    if verb.limit is None or (name == "metrics" and given.listen is not None):
        return verb.run(given, request) or 0
    try:
        with limit_time(name, verb.limit.seconds):
            return verb.run(given, request) or 0
    except Ended as error:
        report.say(f"{name}: ended {error}: {verb.limit.undone}", to_syslog=False)
        return verb.limit.status


# --- Parsing


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


def list_arguments(verb: Verb) -> list[Argument]:
    """List a command's own arguments, without the options of the hook."""
    return [Argument(row) for row in ARGUMENTS[verb.form.__name__][2]]


def list_options(names: tuple[str, ...] = HOOK) -> list[Argument]:
    """List the shared options of these `names`: those of the hook, and --json."""
    json = ("json", False, False, "", (), "print JSON, one object on a line")
    return [Argument(row) for row in (*ARGUMENTS["Options"][2], json) if row[0] in names]


def _read_hook_options(name: str, words: list[str]) -> dict[str, Any]:
    """Return the options of the hook that hold unless the command line has others: those in the hooks.d files.

    It prints a warning for each option that this command would take from there, and cannot.
    """
    if name in WRITERS or "run_dir" not in VERBS[name].options:
        return {}

    def list_specs() -> list[str]:
        return [spec.path for spec in engines.read_containerd().specs if spec.is_in_force]

    joined = [*_join_values(words, {"hooks_dir": ""})]
    given = [word.partition("=")[2] for word in joined if word.startswith("--hooks-dir=")]
    found, problems = hooksd.read_options([*engines.list_hooks_dirs(), *given], list_specs)
    wanted = {*VERBS[name].options}.difference(map(_get_name, words))
    for subject, problem in problems.items():
        if "/" in subject or subject in wanted:
            report.say(f"warning: {problem}", to_syslog=False)
    return found


def parse_command(name: str, words: list[str], found: Mapping[str, Any] | None = None) -> tuple[Any, Request]:
    """Parse a command line: the command's own arguments, and what it shares with others. Raises Usage.

    `found` has options of the hook that hold unless the command line has others.
    """
    verb = VERBS[name]
    own, shared = list_arguments(verb), list_options(verb.options)
    kinds = {argument.name: argument.kind for argument in (*own, *shared) if argument.is_option}
    joined = [*_join_values(words, kinds)]
    values, others, problems = read_words(joined, kinds)
    values.update(_place_words(others, [argument for argument in own if not argument.is_option], problems))
    together = [f"--{exclusive}" for exclusive in verb.exclusive if exclusive in values]
    if len(together) > 1:
        problems.append(f"{' and '.join(together)} exclude each other")
    is_json = values.pop("json", values.get("output") == "json")
    of_hook = {option.name: values.pop(option.name) for option in shared if option.name in values}
    hook = validate(Options, {**(found or {}), **of_hook}, problems)
    request = Request(hook, [word for word in joined if _get_name(word) in of_hook], is_json)
    try:
        given = validate(verb.form, values, problems)
    except ValidationError as error:
        problems.append(f"{error.errors()[0]['loc'][0]} is missing")
        given = None
    if problems:
        raise Usage(f"{name}: {'; '.join(problems)}; see {_NAME} help {name}")
    return given, request


def _place_words(words: list[str], places: list[Argument], problems: list[str]) -> dict[str, Any]:
    """Assign the words without `--` to a command's arguments in their order; the last one may take several."""
    values: dict[str, Any] = {}
    for word in words:
        is_word = not word.startswith("-") or word == "-"
        if not (places and is_word and word in (places[0].choices or {word})):
            problems.append(f"unknown argument {word.partition('=')[0][:80]!r}")
        elif places[0].kind == []:
            values.setdefault(places[0].name, []).append(word)
        else:
            values[places.pop(0).name] = word
    return values


def _join_values(words: list[str], kinds: dict[str, Any]) -> Iterator[str]:
    """Write each option by its long name, in one word with its value."""
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        long = word.replace("-o", "--output=", 1).rstrip("=") if word.startswith("-o") else word
        lacks_value = "=" not in long and kinds.get(_get_name(long), False) is not False
        yield f"{long}={waiting.pop(0)}" if lacks_value and waiting and not waiting[0].startswith("--") else long


def _get_name(word: str) -> str:
    return word.partition("=")[0][2:].replace("-", "_")


# --- Help

_INDENT = " " * 6
_HOOK_USAGE = """\
usage: resctrl-mon-hook hook|createRuntime|poststop [OPTION...] < OCI-STATE

Puts a container's first process into the resctrl mon_group of its pod
(createRuntime), and removes the group after the pod's last container
(poststop). hooks.d calls `hook`, which takes the stage from the status in the
container's state. Always exits 0, except with --strict. Failures are in syslog
and in RUN-DIR/unmonitored. Needs Python 3.9 or newer.

Options, as --x=v or --x v, also of reconcile, watch, install and
base-runtime-spec:
"""
_TAIL = """\
  help COMMAND       explain a command; help hook: what runtimes call
  --version          show the version

Only reconcile, watch, install, uninstall and bytecode change anything. The exit
status is 0, or 2 on error; 1 if doctor finds a failure, reconcile leaves work.
"""
_WIDTH = 79


def find_help(name: str) -> str | None:
    """Return the help about a command or stage, or without a name about the program, which fits 24 lines.

    The result is None if the name is neither.
    """
    if name in STAGES:
        return _HOOK_USAGE + "\n".join([*_format_arguments(list_options()), ""])
    if name in VERBS:
        return format_command_help(name)
    commands = [f"  {command:<18} {ARGUMENTS[verb.form.__name__][0]}" for command, verb in VERBS.items()]
    return None if name else "\n".join([f"usage: {_NAME} COMMAND [ARGUMENT...]", "", *commands, _TAIL])


def _format_usage(name: str, verb: Verb) -> list[str]:
    """Format a command with its own arguments, in lines that fit a terminal."""
    words: list[str] = []
    for argument in list_arguments(verb):
        is_needed = argument.word.isupper() and argument.kind != []
        word = str(argument) if is_needed else f"[{argument}]" + "..." * (argument.kind == [])
        if argument.name in verb.exclusive[1:]:
            words[-1] = f"{words[-1][:-1]} | {word[1:]}"
        else:
            words.append(word)
    text = " ".join([f"usage: {_NAME} {name}", *words, *["[OPTION...]"] * verb.takes_all])
    return wrap(text, _WIDTH, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)


def format_command_help(name: str) -> str:
    """Format the text of --help after a command: every argument with its meaning and default, and an example."""
    verb = VERBS[name]
    purpose, example, _ = ARGUMENTS[verb.form.__name__]
    shared = [option for option in list_options(verb.options) if option.name in SHARED]
    call, _, why = example.rpartition(": ")
    lines = [*_format_usage(name, verb), "", purpose, ""]
    lines += ["Arguments:", *_format_arguments([*list_arguments(verb), *shared])]
    lines += ["", "Example:", f"  {_NAME} {call}", *_wrap(why)]
    if verb.takes_all:
        lines += ["", f"OPTION is an option of the hook: {_NAME} help hook"]
    return "\n".join([*lines, ""])


def _format_arguments(arguments: list[Argument]) -> list[str]:
    return [line for found in arguments for line in (f"  {found}", *_wrap(found.meaning + found.shown_default))]


def _wrap(text: str) -> list[str]:
    """Wrap a text to indented lines that fit a terminal."""
    return wrap(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)
