# SPDX-License-Identifier: Apache-2.0
"""Runs the commands for people and prints their results.

The exit status is 0, or 2 with a line on stderr; 1 if `doctor` finds a failure, or `reconcile` leaves an action undone.
"""

from __future__ import annotations

from functools import partial

from hook.base import names, system
from hook.base.models import Failure
from hook.base.resctrl import Resctrl
from hook.base.text import printable
from hook.cli import completion, deadline, metrics_command, node_commands, reconcile_command, status
from hook.cli.lookup import find_key
from hook.cli.output import format_plan, get_screen, print_answer, write
from hook.cli.parser import parse
from hook.cli.status import Usage
from hook.install.steps import Refused
from hook.node import door
from hook.node.door import Unreadable
from hook.observe import prometheus, screens, snapshot
from hook.reconcile import run as reconcile
from hook.state.records import Records

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from hook.base.models import Options

_PATIENCE = 10.0  # seconds for stdin: as on the hook path


def main(arguments: list[str]) -> int:
    """Run the command in the first argument; returns the exit status."""
    return status.run(lambda: _run(arguments))


def _run(arguments: list[str]) -> int | None:
    verb, *rest = arguments
    try:
        options, given = parse(verb, rest)
        command = partial(VERBS[verb], options, given)
        is_service = verb == "metrics" and given.listen is not None
        return command() if is_service or verb not in deadline.LIMITS else deadline.run(verb, command)
    except Refused as error:
        return max(status.complain(problem) for problem in error.problems)


# --- The commands


def _list(options: Options, given: argparse.Namespace) -> None:
    seen = snapshot.take_snapshot(options)
    selected = screens.select_keys(seen.keys, given.namespace, given.state, given.sort)
    if given.json:
        print_answer(screens.list_to_json(seen, selected[: given.limit]))
    elif given.what == "unmonitored":
        print_answer(screens.format_unmonitored(seen))
    else:
        print_answer(screens.format_list(seen, selected, given.limit, get_screen(is_wide=given.output == "wide")))


def _show(options: Options, given: argparse.Namespace) -> None:
    with Records(options.run_dir) as records:
        (key,) = snapshot.add_podman_names([find_key(records, Resctrl(options.resctrl_root), given.key)])
        found = (records.failure(name) for name in records.names(Failure))
        of_key = [
            it for it in found if isinstance(it, Failure) and (it.key == key.state.key or it.container in key.alive)
        ]
    if given.json:
        print_answer(screens.key_to_json(key, of_key))
    else:
        is_wide = given.output == "wide"
        print_answer(screens.format_key(key, of_key, get_screen(is_wide=True), is_wide=is_wide))


def _top(options: Options, given: argparse.Namespace) -> None:
    from hook.cli import top_command  # noqa: PLC0415  only this needs termios, which a small image may lack

    top_command.run(options, given)


def _metrics(options: Options, given: argparse.Namespace) -> None:
    if given.listen is not None:
        from hook.observe import serve  # noqa: PLC0415  only this needs http.server

        serve.serve(given.listen, metrics_command.make_answers(options, given), write)
    elif given.textfile is not None:
        metrics_command.write_textfile(options, given)
    elif given.json:
        print_answer(prometheus.to_json(metrics_command.measure(options, given)))
    else:
        write(prometheus.format_text(metrics_command.measure(options, given)))


def _reconcile(options: Options, given: argparse.Namespace) -> int:
    live = _read_keys(given.live) if given.live is not None else None
    # Only if given: `reconcile` alone does not shorten linger times.
    longest = options.linger if any(word.startswith("--linger=") for word in given.words) else None
    act = reconcile_command.plan if given.dry_run else reconcile_command.run
    result = act(options, given, live, longest)
    if given.json:
        print_answer(reconcile.result_to_json(result, dry_run=given.dry_run))
    elif given.dry_run:
        steps = [printable(line) for it in result.outcomes for line in reconcile.format_outcome(it)]
        print_answer([*format_plan(steps), *(printable(reconcile.format_left(line)) for line in result.left)])
    return 0 if result.is_whole else 1


def _install(options: Options, given: argparse.Namespace) -> None:
    print_answer(node_commands.install(options, given))


def _bytecode(_options: Options, given: argparse.Namespace) -> None:
    print_answer(node_commands.make_bytecode(given))


def _uninstall(options: Options, given: argparse.Namespace) -> None:
    print_answer(node_commands.uninstall(options, given))


def _doctor(options: Options, given: argparse.Namespace) -> int:
    answer, is_well = node_commands.doctor(options, given)
    print_answer(answer)
    return 0 if is_well else 1


def _base_runtime_spec(options: Options, given: argparse.Namespace) -> None:
    print_answer(node_commands.base_runtime_spec(options, given))


def _completion(_options: Options, given: argparse.Namespace) -> None:
    write(completion.format_script(given.shell))


def _read_keys(path: str) -> set[str]:
    """The keys in a file, one on each line. Raises Usage for an invalid one, because reconcile would end live keys."""
    try:
        text = _read_stdin() if path == "-" else door.read_text(path, door.CONFIGURATION)
        lines = [line.strip() for line in text.splitlines()]
    except (Unreadable, UnicodeDecodeError) as error:
        raise Usage(f"--live: {error}") from None
    try:
        return {names.container_id(line) for line in lines if line}
    except ValueError as error:
        raise Usage(f"{path}: {error}") from None


def _read_stdin() -> str:
    """All of stdin. Raises Usage if it does not end."""
    text, is_whole = system.read_stdin(door.CONFIGURATION, _PATIENCE)
    if not is_whole:
        raise Usage(f"stdin did not end within {door.CONFIGURATION} bytes and {_PATIENCE:.0f} seconds")
    return text.decode()


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
    "completion": _completion,
}
