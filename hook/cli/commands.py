# SPDX-License-Identifier: Apache-2.0
"""Runs the commands for people and prints their results.

The exit status is 0, or 2 with a line on stderr; 1 if `doctor` finds a failure, or `reconcile` leaves an action undone.
"""

from __future__ import annotations

import os
import sys

from hook.base import jsontext, names, system
from hook.base.models import Failure
from hook.base.resctrl import Resctrl
from hook.cli import metrics_command, node_commands, reconcile_command, status
from hook.cli.parser import parse
from hook.cli.status import Usage
from hook.install import file_steps
from hook.observe import prometheus, rates, render, snapshot
from hook.reconcile import outcome
from hook.state.records import Records, Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any

    from hook.base.models import Options

_CLEAR = "\x1b[H\x1b[2J"  # the cursor home, and the screen erased: ECMA-48 CUP and ED


def main(arguments: list[str]) -> int:
    """Run the command in the first argument; returns the exit status."""
    return status.run(lambda: _run(arguments))


def _run(arguments: list[str]) -> int | None:
    try:
        options, given = parse(arguments[0], arguments[1:])
        return VERBS[arguments[0]](options, given)
    except file_steps.Refused as error:
        return max(status.complain(problem) for problem in error.problems)


# --- The commands


def _list(options: Options, given: argparse.Namespace) -> None:
    seen = snapshot.take_snapshot(options)
    _print(render.list_to_json(seen) if given.json else render.format_list(seen))


def _show(options: Options, given: argparse.Namespace) -> None:
    with Records(options.run_dir) as records:
        key = _find_key(records, Resctrl(options.resctrl_root), given.key)
        found = (records.failure(name) for name in records.failed())
        of_key = [
            it for it in found if isinstance(it, Failure) and (it.key == key.state.key or it.container in key.dead)
        ]
    _print(render.key_to_json(key, of_key) if given.json else render.format_key(key, of_key))


def _top(options: Options, given: argparse.Namespace) -> None:
    live = _is_terminal() and not given.json
    left = given.count if given.count is not None else 0 if _is_terminal() else 1
    former = snapshot.take_snapshot(options)
    try:
        while True:
            system.sleep(given.interval)
            seen = snapshot.take_snapshot(options)
            table = rates.compare(former, seen, system.now_utc())
            if given.json:
                _print(render.rates_to_json(table))
            elif live:
                _print_screen(render.format_rates(table))
            else:
                _print(render.format_rates(table) if left <= 1 else [*render.format_rates(table), ""])
            left -= 1
            if left == 0:
                return
            former = seen
    except KeyboardInterrupt:  # the usual way to end it
        return


def _metrics(options: Options, given: argparse.Namespace) -> None:
    if given.listen is not None:
        from hook.observe import listen  # noqa: PLC0415  only this needs http.server

        listen.serve(given.listen, metrics_command.make_answers(options, given), _write)
    elif given.textfile is not None:
        metrics_command.write_textfile(options, given)
    elif given.json:
        _print(prometheus.to_json(metrics_command.measure(options, given)))
    else:
        _write(prometheus.format_text(metrics_command.measure(options, given)))


def _reconcile(options: Options, given: argparse.Namespace) -> int:
    live = _read_keys(given.live) if given.live is not None else None
    # Only if given: `reconcile` alone does not shorten linger times.
    longest = options.linger if any(word.startswith("--linger=") for word in given.words) else None
    act = reconcile_command.plan if given.dry_run else reconcile_command.run
    result = act(options, given, live, longest)
    if given.json:
        _print(outcome.to_json(result, dry_run=given.dry_run))
    elif given.dry_run:
        _print(outcome.format_outcomes(result.outcomes, result.left))
    return 0 if result.is_whole else 1


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


def _read_keys(path: str) -> set[str]:
    """The keys in a file, one on each line. Raises Usage for an invalid one, because reconcile would end live keys."""
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


def _find_key(records: Records, kernel: Resctrl, name: str) -> snapshot.Key:
    """The key or the key of the container with this name, or the only key with this prefix. Otherwise raises Usage."""
    try:
        known = records.recorded()
        found = [name] if name in known else []
        indexed = records.key_of(names.container_id(name))
        found = found or ([indexed] if indexed is not None else [key for key in known if key.startswith(name)])
    except ValueError:
        found = []
    if len(found) > 1:
        raise Usage(f"{len(found)} keys begin with {name!r}: {found[0]}, {found[1]}{', ...' if found[2:] else ''}")
    key = snapshot.read_key(records, kernel, found[0]) if found else None
    if isinstance(key, Unreadable):
        raise Usage(f"{key.file}: {key.problem}")
    if key is None:
        raise Usage(_explain_unknown(records, name))
    return key


def _explain_unknown(records: Records, name: str) -> str:
    failure = records.failure(name)
    if isinstance(failure, Failure):
        return f"container {name} has no key: {failure.reason}: {failure.problem}"
    return f"no key or container matches {name[:80]!r}"


# --- Output


def _print(answer: list[str] | dict[str, Any]) -> None:
    """Print lines, or an object as one line of JSON."""
    _write("".join(line + "\n" for line in answer) if isinstance(answer, list) else jsontext.dumps(answer) + "\n")


def _print_screen(lines: list[str]) -> None:
    """Clear the terminal and print as much as fits."""
    size = os.get_terminal_size(sys.stdout.fileno())
    _write(_CLEAR + "\n".join(line[: size.columns] for line in lines[: size.lines - 1]) + "\n")


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _write(text: str) -> None:
    """Write ASCII text and flush it, because the process ends without Python's clean-up."""
    if sys.stdout is not None:  # None: closed by the parent process
        sys.stdout.write(text)
        sys.stdout.flush()
