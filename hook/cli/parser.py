# SPDX-License-Identifier: Apache-2.0
"""Parses the command line of a command for people. A container's start never imports this."""

from __future__ import annotations

import argparse
import ipaddress
import os
import re

from hook.base import names
from hook.base.models import Options
from hook.cli import completion
from hook.cli.status import Usage
from hook.stages.context import parse as parse_hook_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

_OPTIONS = {"resctrl_root": names.directory, "run_dir": names.directory, "group_prefix": names.group_prefix}
_LONGEST_INTERVAL = 86400.0
_OUTPUTS = ("wide", "json")
_FOR_A_LOOK = ("list", "show", "top")
WITH_HOOK_OPTIONS = ("reconcile", "watch", "install", "base-runtime-spec")


def parse(verb: str, arguments: list[str]) -> tuple[Options, argparse.Namespace]:
    """The options of the hook, and those of the command. Raises Usage."""
    parser = make_parser(verb)
    given, rest = parser.parse_known_args(arguments)
    if verb == "completion" and not rest:
        return Options(), given
    if rest and verb not in WITH_HOOK_OPTIONS:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    given.words = _join_words(given, rest)
    if getattr(given, "output", None) == "json":
        given.json = True
    common = {name: getattr(given, name) for name in _OPTIONS}
    if verb in _FOR_A_LOOK:
        _check_directories(common)
    return Options(**{**_parse_hook_options(verb, rest), **common}), given


def _check_directories(given: dict[str, str]) -> None:
    """Raise Usage for a directory that was named and is not there: its screens would be empty, and wrong.

    Not for `metrics`, which a service may serve before the first hook has run.
    """
    defaults = Options().model_dump()
    for name in ("run_dir", "resctrl_root"):
        if given[name] != defaults[name] and not os.path.exists(given[name]):
            raise Usage(f"--{name.replace('_', '-')}={given[name][:80]}: there is no such directory")


def _parse_hook_options(verb: str, arguments: list[str]) -> dict[str, Any]:
    """The options of the hook, which reconcile uses and install writes to its files."""
    found, problems = parse_hook_options(arguments)
    if problems:
        raise Usage(f"{verb}: {'; '.join(problems)}; see resctrl-mon-hook --help")
    return found.model_dump()


def _join_words(given: argparse.Namespace, rest: list[str]) -> list[str]:
    """The given options of the hook, each as one word."""
    defaults = Options().model_dump()
    common = {name: getattr(given, name) for name in _OPTIONS}
    words = [f"--{it.replace('_', '-')}={text}" for it, text in common.items() if text != defaults[it]]
    waiting = list(rest)
    while waiting:
        word = waiting.pop(0)
        takes_value = "=" not in word and defaults.get(word[2:].replace("-", "_")) is not False
        words.append(f"{word}={waiting.pop(0)}" if takes_value and waiting else word)
    return words


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Usage(f"{self.prog}: {message[:300]}; see resctrl-mon-hook --help")


def make_parser(verb: str) -> argparse.ArgumentParser:
    """The parser of a command, with the defaults of the hook. It raises Usage for a wrong argument."""
    parser = _Parser(prog=verb, add_help=False, allow_abbrev=False)
    if verb == "completion":
        parser.add_argument("shell", metavar="SHELL", choices=list(completion.SHELLS))
        return parser
    defaults = Options().model_dump()
    for name, check in _OPTIONS.items():
        parser.add_argument("--" + name.replace("_", "-"), type=_make_type(check), default=defaults[name])
    if verb in _ADD:
        _ADD[verb](parser)
    form = parser.add_mutually_exclusive_group()
    if verb != "watch":  # it prints nothing but its log
        form.add_argument("--json", action="store_true")
    if verb == "metrics":
        form.add_argument("--textfile")
        form.add_argument("--listen", type=_parse_address)
    return parser


def _add_list(parser: argparse.ArgumentParser) -> None:
    from hook.observe import screens  # noqa: PLC0415  watch does not need what it imports

    parser.add_argument("what", metavar="unmonitored", nargs="?", choices=["unmonitored"])
    parser.add_argument("--state", action="append", choices=list(screens.STATES), default=[])
    parser.add_argument("--limit", type=_parse_count)
    _add_view(parser, list(screens.LIST_SORTS))


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY")
    parser.add_argument("-o", "--output", choices=_OUTPUTS)


def _add_top(parser: argparse.ArgumentParser) -> None:
    from hook.observe import screens  # noqa: PLC0415  as above

    parser.add_argument("--interval", type=_parse_interval, default=2.0)
    parser.add_argument("--count", type=_parse_count)
    _add_view(parser, list(screens.TOP_SORTS))


def _add_metrics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=_parse_events)
    parser.add_argument("--sum-domains", action="store_true")


def _add_reconcile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--adopt", action="store_true")
    _add_runtime_root(parser)
    parser.add_argument("--live")


def _add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--adopt", action="store_true")  # of reconcile: both units have the same file of options


def _add_install(parser: argparse.ArgumentParser) -> None:
    from hook.cli import node_commands  # noqa: PLC0415  as above

    parser.add_argument("--for", dest="targets", choices=list(node_commands.TARGETS))
    _add_paths(parser)
    parser.add_argument("--python")
    parser.add_argument("--adopt", action="store_true")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--force", action="store_true")


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prefix", type=_make_type(names.directory))
    parser.add_argument("--hooks-dir", action="append", type=_make_type(names.directory), default=[])
    parser.add_argument("--self-test", action="store_true")


def _add_uninstall(parser: argparse.ArgumentParser) -> None:
    _add_paths(parser)
    _add_runtime_root(parser)
    parser.add_argument("--force", action="store_true")


def _add_base_runtime_spec(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prefix", type=_make_type(names.directory))


_ADD: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "list": _add_list,
    "show": _add_show,
    "top": _add_top,
    "metrics": _add_metrics,
    "reconcile": _add_reconcile,
    "watch": _add_watch,
    "install": _add_install,
    "doctor": _add_doctor,
    "uninstall": _add_uninstall,
    "base-runtime-spec": _add_base_runtime_spec,
}
"""Adds the arguments of a command that has some of its own."""


def _add_runtime_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runtime-root", action="append", type=_make_type(names.directory), default=[])


def _add_view(parser: argparse.ArgumentParser, sorts: list[str]) -> None:
    """Add the arguments of a screen with a row for each key."""
    parser.add_argument("--namespace", action="append", default=[])
    parser.add_argument("--sort", choices=sorts, default="energy")
    parser.add_argument("-o", "--output", choices=_OUTPUTS)


def _add_paths(parser: argparse.ArgumentParser) -> None:
    for name in ("prefix", "hooks-dir", "destdir"):
        parser.add_argument(f"--{name}", type=_make_type(names.directory))
    parser.add_argument("--dry-run", action="store_true")


def _make_type(check: Callable[[str], str]) -> Callable[[str], str]:
    """Make a validator of `names` usable for argparse, which prints the text of this error only."""

    def check_text(text: str) -> str:
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text[:80]!r}: {error}") from None

    return check_text


def _parse_interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_INTERVAL:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a number of seconds above 0")
    return seconds


def _parse_count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9 or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a number above 0")
    return int(text)


def _parse_events(text: str) -> frozenset[str]:
    """The kernel's names of events, with commas between them."""
    found = text.split(",")
    if not all(re.fullmatch("[A-Za-z0-9_]+", event) for event in found):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a list of events, such as core_energy,mbm_total_bytes")
    return frozenset(found)


def _parse_address(text: str) -> tuple[str, int]:
    """`ADDRESS:PORT`, `[IPV6]:PORT` or `PORT`. Names are not looked up: they could lead anywhere."""
    address, _, port = text.rpartition(":")
    address = address[1:-1] if address[:1] == "[" and address[-1:] == "]" else address
    try:
        if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535):
            raise ValueError(port)
        return str(ipaddress.ip_address(address or "127.0.0.1")), int(port)
    except ValueError:
        problem = f"{text[:80]!r} is not ADDRESS:PORT, such as 127.0.0.1:9753 or [::1]:9753"
        raise argparse.ArgumentTypeError(problem) from None
