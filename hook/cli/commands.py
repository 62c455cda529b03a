"""The verbs for people: their command lines, what they print, and their exit status.

That is 0, or 2 with a line on stderr; `doctor` ends with 1 if it found a failure.
"""

from __future__ import annotations

import argparse
import os
import sys

from hook.base import jsontext, names, system
from hook.base.errors import HookError
from hook.base.explain import refused, unforeseen
from hook.base.models import Failure, Options
from hook.base.resctrl import Resctrl
from hook.cli import node_commands
from hook.host import oci_runtimes
from hook.install import file_steps
from hook.observe import prometheus, rates, render, snapshot
from hook.reconcile import reconcile
from hook.stages import failures
from hook.stages.context import parse as parse_options
from hook.state.records import Records, Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

_OPTIONS = {"resctrl_root": names.directory, "run_dir": names.directory, "group_prefix": names.group_prefix}
_CLEAR = "\x1b[H\x1b[2J"  # the cursor home, and the screen erased: ECMA-48 CUP and ED
_LONGEST_INTERVAL = 86400.0
_WITH_HOOK_OPTIONS = ("reconcile", "install", "base-runtime-spec")


class Usage(Exception):
    """A command line that cannot be followed; the text is for whoever typed it."""


def main(arguments: list[str]) -> int:
    """Answer one of VERBS, the first of the arguments; returns the exit status."""
    try:
        parser = parser_of(arguments[0])
        given, rest = parser.parse_known_args(arguments[1:])
        if rest and arguments[0] not in _WITH_HOOK_OPTIONS:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        given.words = _words(given, rest)
        options = Options(**{**_hook_options(arguments[0], rest), **{name: getattr(given, name) for name in _OPTIONS}})
        status = VERBS[arguments[0]](options, given)
    except BrokenPipeError:  # the reader has seen enough, as `head` has
        return 0
    except KeyboardInterrupt:
        return _said("interrupted")
    except file_steps.Refused as error:
        return max(_said(problem) for problem in error.problems)
    except (HookError, Usage) as error:
        return _said(str(error))
    except OSError as error:
        return _said(str(refused("a file could not be read or written", error)))
    except Exception as error:  # noqa: BLE001  nothing that this process prints may look like an answer and be none
        return _said(str(unforeseen(error)))
    return status or 0


def _hook_options(verb: str, arguments: list[str]) -> dict[str, Any]:
    """Those of the hook: what reconcile does in its place goes by the same ones, and install hands them on."""
    found, complaints = parse_options(arguments)
    if complaints:
        raise Usage(f"{verb}: {'; '.join(complaints)}; see resctrl-mon-hook --help")
    return found.model_dump()


def _words(given: argparse.Namespace, rest: list[str]) -> list[str]:
    """The options of the hook that were given, each as one word."""
    defaults = Options().model_dump()
    common = {name: getattr(given, name) for name in _OPTIONS}
    words = [f"--{it.replace('_', '-')}={text}" for it, text in common.items() if text != defaults[it]]
    waiting = list(rest)
    while waiting:
        word = waiting.pop(0)
        takes_value = "=" not in word and defaults.get(word[2:].replace("-", "_")) is not False
        words.append(f"{word}={waiting.pop(0)}" if takes_value and waiting else word)
    return words


def _said(problem: str) -> int:
    failures.say(problem, to_syslog=False)
    return 2


# --- The verbs


def _list(options: Options, given: argparse.Namespace) -> None:
    seen = snapshot.look(options)
    _print(render.listed(seen) if given.json else render.listing(seen))


def _show(options: Options, given: argparse.Namespace) -> None:
    with Records(options.run_dir) as records:
        key = _key(records, Resctrl(options.resctrl_root), given.key)
        found = (records.failure(name) for name in records.failed())
        of_key = [
            it for it in found if isinstance(it, Failure) and (it.key == key.state.key or it.container in key.dead)
        ]
    _print(render.told(key, of_key) if given.json else render.story(key, of_key))


def _top(options: Options, given: argparse.Namespace) -> None:
    live = _is_terminal() and not given.json
    left = given.count if given.count is not None else 0 if _is_terminal() else 1
    former = snapshot.look(options)
    try:
        while True:
            system.sleep(given.interval)
            seen = snapshot.look(options)
            table = rates.between(former, seen, system.now_utc())
            if given.json:
                _print(render.ranked(table))
            elif live:
                _print_screen(render.ranking(table))
            else:
                _print(render.ranking(table) if left <= 1 else [*render.ranking(table), ""])
            left -= 1
            if left == 0:
                return
            former = seen
    except KeyboardInterrupt:  # how it is meant to be ended
        return


def _metrics(options: Options, given: argparse.Namespace) -> None:
    seen = snapshot.look(options)
    if given.textfile is not None:
        prometheus.write_textfile(given.textfile, prometheus.exposition(seen))
    elif given.json:
        _print(prometheus.document(seen))
    else:
        _write(prometheus.exposition(seen))


def _reconcile(options: Options, given: argparse.Namespace) -> None:
    live = _keys_in(given.live) if given.live is not None else None
    # Only where it is named: whoever types `reconcile` alone ends nothing that lingers.
    longest = options.linger if any(word.startswith("--linger=") for word in given.words) else None
    act = reconcile.planned if given.dry_run else reconcile.run
    done = act(options, live, longest_linger=longest)
    outcomes, left = list(done.outcomes), list(done.left)
    if given.adopt:
        states, complaints = oci_runtimes.states(further=given.runtime_root)
        outcomes += reconcile.adopt(options, states, dry_run=given.dry_run)
        left += complaints
    _print(render.done(outcomes, left, dry_run=given.dry_run) if given.json else render.deeds(outcomes, left))


def _install(options: Options, given: argparse.Namespace) -> None:
    _print(node_commands.install(options, given))


def _bytecode(_options: Options, given: argparse.Namespace) -> None:
    _print(node_commands.make_bytecode(given))


def _uninstall(options: Options, given: argparse.Namespace) -> None:
    _print(node_commands.uninstall(options, given))


def _doctor(options: Options, given: argparse.Namespace) -> int:
    answer, is_well = node_commands.doctor(options, given)
    _print(answer)
    return 0 if is_well else 1


def _base_runtime_spec(options: Options, given: argparse.Namespace) -> None:
    _print(node_commands.base_runtime_spec(options, given))


def _keys_in(path: str) -> set[str]:
    """The keys in a file, one on a line. Usage for one that is none: it would end what lives."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.strip() for line in file]
    try:
        return {names.container_id(line) for line in lines if line}
    except ValueError as error:
        raise Usage(f"{path}: {error}") from None


VERBS: dict[str, Callable[[Options, argparse.Namespace], int | None]] = {
    "list": _list,
    "show": _show,
    "top": _top,
    "metrics": _metrics,
    "doctor": _doctor,
    "reconcile": _reconcile,
    "install": _install,
    "uninstall": _uninstall,
    "bytecode": _bytecode,
    "base-runtime-spec": _base_runtime_spec,
}


def _key(records: Records, kernel: Resctrl, name: str) -> snapshot.Key:
    """The key of this name, of the container of this name, or the only one whose name begins so; else Usage."""
    try:
        known = records.recorded()
        found = [name] if name in known else []
        indexed = records.key_of(names.container_id(name))
        found = found or ([indexed] if indexed is not None else [key for key in known if key.startswith(name)])
    except ValueError:
        found = []
    if len(found) > 1:
        raise Usage(f"{len(found)} keys begin with {name!r}: {found[0]}, {found[1]}{', ...' if found[2:] else ''}")
    key = snapshot.look_at(records, kernel, found[0]) if found else None
    if isinstance(key, Unreadable):
        raise Usage(f"{key.file}: {key.problem}")
    if key is None:
        raise Usage(_unknown(records, name))
    return key


def _unknown(records: Records, name: str) -> str:
    failure = records.failure(name)
    if isinstance(failure, Failure):
        return f"container {name} has no key: {failure.reason}: {failure.problem}"
    return f"no key, and no container of a key, is or begins with {name[:80]!r}"


# --- Command lines


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Usage(f"{self.prog}: {message[:300]}; see resctrl-mon-hook --help")


def parser_of(verb: str) -> argparse.ArgumentParser:
    """What a verb takes, with the defaults of the hook. What it cannot take raises Usage."""
    parser = _Parser(prog=verb, add_help=False, allow_abbrev=False)
    defaults = Options().model_dump()
    for name, check in _OPTIONS.items():
        parser.add_argument("--" + name.replace("_", "-"), type=_checked(check), default=defaults[name])
    if verb == "show":
        parser.add_argument("key", metavar="KEY")
    elif verb == "top":
        parser.add_argument("--interval", type=_interval, default=2.0)
        parser.add_argument("--count", type=_count)
    elif verb == "reconcile":
        parser.add_argument("--dry-run", action="store_true")
        parser.add_argument("--adopt", action="store_true")
        parser.add_argument("--runtime-root", action="append", type=_checked(names.directory), default=[])
        parser.add_argument("--live")
    elif verb == "install":
        parser.add_argument("--for", dest="targets", choices=list(node_commands.TARGETS))
        _add_places(parser)
        parser.add_argument("--python")
        parser.add_argument("--adopt", action="store_true")
        parser.add_argument("--force", action="store_true")
    elif verb == "doctor":
        parser.add_argument("--prefix", type=_checked(names.directory))
        parser.add_argument("--hooks-dir", action="append", type=_checked(names.directory), default=[])
        parser.add_argument("--inject", metavar="FILE")
        parser.add_argument("--self-test", action="store_true")
    elif verb == "uninstall":
        _add_places(parser)
        parser.add_argument("--runtime-root", action="append", type=_checked(names.directory), default=[])
        parser.add_argument("--force", action="store_true")
    elif verb == "base-runtime-spec":
        parser.add_argument("--prefix", type=_checked(names.directory))
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true")
    if verb == "metrics":
        form.add_argument("--textfile")
    return parser


def _add_places(parser: argparse.ArgumentParser) -> None:
    for name in ("prefix", "hooks-dir", "destdir"):
        parser.add_argument(f"--{name}", type=_checked(names.directory))
    parser.add_argument("--dry-run", action="store_true")


def _checked(check: Callable[[str], str]) -> Callable[[str], str]:
    """A function of `names` for argparse, which tells people the text of this error alone."""

    def checked(text: str) -> str:
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text[:80]!r}: {error}") from None

    return checked


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_INTERVAL:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no number of seconds above 0")
    return seconds


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9 or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no number above 0")
    return int(text)


# --- Output


def _print(answer: list[str] | dict[str, Any]) -> None:
    """Lines, or an object as one line of JSON."""
    _write("".join(line + "\n" for line in answer) if isinstance(answer, list) else jsontext.dumps(answer) + "\n")


def _print_screen(lines: list[str]) -> None:
    """As much of it as the terminal has room for, from its upper left corner on."""
    size = os.get_terminal_size(sys.stdout.fileno())
    _write(_CLEAR + "\n".join(line[: size.columns] for line in lines[: size.lines - 1]) + "\n")


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _write(text: str) -> None:
    """Text of ASCII alone, at once: the process ends without Python's own clean-up."""
    if sys.stdout is not None:  # None: whoever started us closed it
        sys.stdout.write(text)
        sys.stdout.flush()
