# SPDX-License-Identifier: Apache-2.0
"""The functions of the commands, and the table of all commands.

A command imports its modules when it runs, so that `list` does not load those of `install`, and `watch`, which runs for
months, loads no others.
"""

from __future__ import annotations

import gc
import os
import sys
from dataclasses import dataclass

from hook import jsontext
from hook.cli import options
from hook.models import Options
from hook.show.terminal import Meter, get_screen, print_answer, print_printable, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from hook.doctor import Finding, Site
    from hook.install.bytecode import PyzFile
    from hook.install.steps import Taken
    from hook.node.paths import Places
    from hook.show.prometheus import Choice, Family, Former

Limit = tuple[float, int, str]


class Usage(Exception):
    """The command line is wrong; the text is for the user."""


@dataclass(frozen=True)
class Request:
    """The part of a command line that commands share. `words`: the options of the hook, as they were written."""

    hook: Options
    words: list[str]
    is_json: bool


# --- Commands that change nothing


def list_keys(given: options.List, request: Request) -> None:
    from hook.show import lists, snapshot

    _check_directories(request)
    with Meter() as meter:
        seen = snapshot.take_snapshot(request.hook, follow=meter.show)
    states = given.state or (lists.RUNNING if given.by else [])
    selected = lists.select_keys(seen.keys, given.namespace, states, given.sort)
    if request.is_json and given.by:
        print_answer({"namespaces": lists.namespaces_to_json(selected, given.sort)[: given.limit]})
    elif given.by:
        print_answer(lists.format_namespaces(selected, given.sort, given.limit, get_screen()))
    elif request.is_json:
        print_answer(lists.list_to_json(seen, selected[: given.limit]))
    elif given.what == "unmonitored":
        print_answer(lists.format_unmonitored(seen))
    else:
        print_answer(lists.format_list(seen, selected, given.limit, get_screen(is_wide=given.output == "wide")))


def _check_directories(request: Request) -> None:
    """Raise Usage for a directory on the command line that does not exist: the screens would be empty, and wrong.

    `metrics` does not check, since its service may start before the first hook has run.
    """
    for word in request.words:
        option, _, path = word.partition("=")
        is_directory = option in ("--run-dir", "--resctrl-root") and path not in dict(Options()).values()
        if is_directory and not os.path.exists(path):
            raise Usage(f"{option}={path[:80]}: there is no such directory")


def show_key(given: options.Show, request: Request) -> None:
    from hook.cli.lookup import find_key
    from hook.models import Failure
    from hook.node.records import Records
    from hook.resctrl import Resctrl
    from hook.show import lists, snapshot

    _check_directories(request)
    with Records(request.hook.run_dir) as records:
        kernel, prefix = Resctrl(request.hook.resctrl_root), request.hook.group_prefix
        key = snapshot.add_taken_to_one(find_key(records, kernel, given.key), records, kernel, prefix)
        failures = [it for it in map(records.failure, records.names(Failure)) if isinstance(it, Failure)]
    of_key = [it for it in failures if it.key == key.state.key or it.container in key.alive]
    if request.is_json:
        print_answer(lists.key_to_json(key, of_key))
    else:
        print_answer(lists.format_key(key, of_key, get_screen(is_wide=True), is_wide=given.output == "wide"))


def top(given: options.Top, request: Request) -> None:
    from hook.cli.top import show_top  # only this needs termios, which a small image may lack

    _check_directories(request)
    show_top(given, request)


def show_history(given: options.History, request: Request) -> None:
    from hook import report, system
    from hook.node.files import Unreadable
    from hook.show import history

    try:
        since = history.parse_since(given.since, system.unix_time()) if given.since is not None else ""
        found = history.read(given.history, given.name, since)
    except ValueError as error:
        raise Usage(f"--since: {error}") from None
    except Unreadable as error:
        if not error.is_missing:
            raise Usage(f"cannot read {error}") from None
        why = "a hook with --history=FILE writes it when a container ends; `install --for=podman` sets that option"
        raise Usage(f"there is no {given.history} yet: {why}") from None
    if found.absent:
        raise Usage(f"no job in {given.history} matches {', '.join(map(repr, found.absent))[:200]}")
    if request.is_json:
        print_answer(history.jobs_to_json(given.history, found, given.by))
    elif given.csv:
        for line in history.list_csv(found, given.by):
            write(line)
        if text := found.explain():
            report.say(text, to_syslog=False)
    elif given.by is None:
        print_answer(history.format_jobs(found, get_screen()))
    else:
        print_answer(history.format_sums(found, given.by, get_screen()))


def metrics(given: options.Metrics, request: Request) -> None:
    from hook.show import prometheus

    if given.created and given.listen is None:
        raise Usage("--created needs --listen: only OpenMetrics has these samples")
    events = parse_events(given.events) if given.events is not None else None
    choice = prometheus.Choice(events, given.sum_domains, given.created)
    if given.listen is not None:
        _serve_metrics(parse_address(given.listen), request.hook, choice)
    elif given.textfile is not None:
        former = prometheus.read_former(given.textfile)
        prometheus.write_textfile(given.textfile, prometheus.format_text(_measure(request.hook, choice, former)))
    elif request.is_json:
        print_answer(prometheus.to_json(_measure(request.hook, choice)))
    else:
        write(prometheus.format_text(_measure(request.hook, choice)))


def _serve_metrics(address: tuple[str, int], hook: Options, choice: Choice) -> None:
    """Serve metrics; each answer gets the samples of the one before, so that no counter dips."""
    from hook import system
    from hook.show import prometheus, server

    families: list[Family] = []
    at = 0.0

    def measure() -> server.Reading:
        nonlocal families, at
        now = system.monotonic()
        families = found = _measure(hook, choice, prometheus.keep_former(families, now - at))
        at = now
        return lambda is_open: prometheus.format_text(found, is_open=is_open)

    server.serve(address, measure, write)


def _measure(hook: Options, choice: Choice, former: Former | None = None) -> list[Family]:
    """Take a snapshot, and make its metrics. `former`: the samples exported before.

    Raises HookError, as take_snapshot, and `usage` for an event that does not exist on this machine.
    """
    from hook.counters import EVENTS
    from hook.errors import HookError, Reason
    from hook.show import prometheus, snapshot

    seen = snapshot.take_snapshot(hook, has_uncharged=True)
    shown = {snapshot.get_event(counter) for values in seen.uncharged.values() for counter in values}
    # A known event may be missing on this machine; an unknown one is misspelt.
    if unknown := sorted((choice.events or frozenset()) - shown - EVENTS.keys()) if shown else []:
        hint = f"the kernel has {', '.join(sorted(shown))}"
        raise HookError(Reason.USAGE, f"--events: no such event: {', '.join(unknown)}", hint=hint)
    return prometheus.make_families(seen, former, choice)


def parse_events(text: str) -> frozenset[str]:
    """Parse the kernel's names of events, with commas between them. Raises Usage."""
    found = frozenset(text.split(","))
    if not all(it.replace("_", "a").isalnum() and it.isascii() for it in found):
        raise Usage(f"--events: {text[:80]!r} is not a list of events, such as core_energy,mbm_total_bytes")
    return found


def parse_address(text: str) -> tuple[str, int]:
    """Parse `ADDRESS:PORT`, `[IPV6]:PORT` or `PORT`. Host names are refused: they could lead anywhere. Raises Usage."""
    import ipaddress

    address, _, port = text.rpartition(":")
    address = address[1:-1] if address[:1] == "[" and address[-1:] == "]" else address
    try:
        if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535):
            raise ValueError(port)
        return str(ipaddress.ip_address(address or "127.0.0.1")), int(port)
    except ValueError:
        problem = f"--listen: {text[:80]!r} is not ADDRESS:PORT, such as 127.0.0.1:9753 or [::1]:9753"
        raise Usage(problem) from None


def doctor(given: options.Doctor, request: Request) -> int:
    from hook.doctor import FAILURE, Site, format_findings, to_objects
    from hook.node import engines
    from hook.node.paths import Places, choose_hooks_dir

    prefix = given.prefix or _find_own_prefix()
    directories = tuple(given.hooks_dir or engines.list_hooks_dirs())
    findings = examine(Site(Places(prefix, choose_hooks_dir(prefix)), request.hook, directories))
    is_well = all(found.level != FAILURE for found in findings)
    if request.is_json:
        print_answer({"well": is_well, "findings": to_objects(findings)})
    else:
        print_answer(format_findings(findings, get_screen(is_wide=given.output == "wide")))
    return 0 if is_well else 1


def examine(site: Site) -> list[Finding]:
    """Run all checks. If doctor is ended early, add a failure that names the last check."""
    from hook.cli.deadline import Ended
    from hook.doctor import FAILURE, Finding
    from hook.doctor.checks import CHECKS

    findings: list[Finding] = []
    with Meter() as meter:
        for check in CHECKS:
            meter.show(f"checking {check.subject}")
            try:
                for finding in check.run(site):
                    findings.append(finding)
            except Ended as error:
                remedy = "see why this takes so long; this check and those after it are not complete"
                why = f"doctor ended {error}, during this check"
                return [*findings, Finding(FAILURE, check.subject, why, remedy)]
    return findings


def complete(given: options.Completion, _request: Request) -> None:
    write(_open_pyz().text(f"packaging/completions/{given.shell}"))


# --- Commands that change something


def reconcile(given: options.Reconcile, request: Request) -> int:
    from hook.cli.deadline import Ended
    from hook.node import runtimes
    from hook.reconcile.run import Work, plan_repairs, repair
    from hook.show.repairs import RepairLog, format_left, format_outcome, result_to_json

    live = _read_live_keys(given.live) if given.live is not None else None
    # Only if given: `reconcile` alone does not shorten linger times.
    longest = request.hook.linger if any(word.startswith("--linger=") for word in request.words) else None
    asks = runtimes.find_runtimes(given.runtime_root).list_states if given.adopt else None
    if given.dry_run:
        result = plan_repairs(request.hook, live, longest, asks)
        if not request.is_json:
            print_printable([line for outcome in result.outcomes for line in format_outcome(outcome)], dry_run=True)
            print_printable(format_left(result))
    else:
        gc.disable()  # the collector takes a quarter of the time on tens of thousands of records, and finds no cycle
        log = RepairLog(is_quiet=request.is_json)
        work = Work(log.note)
        try:
            result = repair(request.hook, live, longest, asks, work)
        except Ended as error:
            result = work.end_early(str(error))
        log.end(result)
    if request.is_json:
        print_answer(result_to_json(result, dry_run=given.dry_run))
    return 0 if result.is_whole else 1


def _read_live_keys(path: str) -> set[str]:
    """Read the keys in a file, one a line. Usage: one is invalid. If that were skipped, a live key would end."""
    from hook import names, system
    from hook.entry import STDIN_PATIENCE
    from hook.node import files

    try:
        if path == "-":
            data, is_whole = system.read_stdin(files.CONFIGURATION, STDIN_PATIENCE)
            if not is_whole:
                raise Usage(f"stdin did not end within {files.CONFIGURATION} bytes and {STDIN_PATIENCE:.0f} seconds")
            text = data.decode()
        else:
            text = files.read_text(os.path.abspath(path), files.CONFIGURATION)
        return {names.container_id(line.strip()) for line in text.splitlines() if line.strip()}
    except (files.Unreadable, ValueError) as error:
        raise Usage(f"--live={path}: {error}") from None


def watch(_given: options.RunWatch, request: Request) -> None:
    from hook.watch import run

    run(request.hook)


def install_program(given: options.Install, request: Request) -> None:
    from hook.install.install import Wanted, install
    from hook.install.steps import Refused
    from hook.node.paths import RUNTIMES, TARGETS, USR, find_targets

    places = _choose_places(given, USR)
    targets: tuple[str, ...] = TARGETS
    if given.targets != "both":
        targets = (given.targets,) if given.targets else tuple(find_targets(places.top))
    if not targets:
        raise Refused(f"found none of {', '.join(RUNTIMES)}; remedy: use --for=kubernetes, podman or both")
    pyz, words = _open_pyz(), tuple(request.words)
    wanted = Wanted(pyz, places, targets, words, request.hook, given.adopt, given.python, given.force, given.watch)
    taken, remarks = install(wanted, dry_run=given.dry_run)
    _print_steps(request, taken, remarks, {"dry_run": given.dry_run, "remarks": remarks})


def _print_steps(request: Request, taken: Taken, remarks: list[str], more: dict[str, Any]) -> None:
    """Print steps, and remarks on them. `more`: what JSON has besides."""
    from hook.install.steps import format_steps, steps_to_json

    if request.is_json:
        print_answer({**more, "steps": steps_to_json(taken)})
    else:
        print_printable(format_steps(taken), dry_run=more.get("dry_run", False))
        print_printable(remarks)


def uninstall_program(given: options.Uninstall, request: Request) -> int:
    from hook.install.install import format_removal, uninstall

    places, hook = _choose_places(given, _find_own_prefix()), request.hook
    done = uninstall(places, hook, force=given.force, dry_run=given.dry_run)
    more = {"dry_run": given.dry_run, "unfinished": done.unfinished, "left": done.left}
    _print_steps(request, done.taken, format_removal(done), more)
    return 1 if done.unfinished else 0


def make_bytecode(_given: options.MakeBytecode, request: Request) -> None:
    """Compile the program that runs, if its Python needs it."""
    from hook.install import steps
    from hook.install.bytecode import plan_bytecode
    from hook.install.install import find_python

    program, shipped = os.path.realpath(_find_own_path()), _open_pyz()
    plan = plan_bytecode(program, shipped, find_python(shipped.python))
    with steps.lock_directory(os.path.dirname(program)):
        taken = steps.take_steps(plan, dry_run=False)
    if problems := [problem for _step, problem in taken if problem is not None]:
        raise steps.Refused(*problems)
    _print_steps(request, taken, [], {})


def make_base_runtime_spec(given: options.BaseRuntimeSpec, request: Request) -> None:
    """Print the specification on stdin with the hook that install would write."""
    from hook.install.install import Wanted, add_hook, make_hook_file
    from hook.install.steps import Refused
    from hook.node.paths import KUBERNETES, NAME, Places

    places = Places(given.prefix or _find_own_prefix())
    wanted = Wanted(_open_pyz(), places, (KUBERNETES,), tuple(request.words), request.hook)
    called = jsontext.loads(make_hook_file(wanted, KUBERNETES))["hook"]
    try:
        print_answer(add_hook(jsontext.loads(sys.stdin.read()), called))
    except ValueError as error:
        raise Refused(f"{error}; remedy: use ctr oci spec | {NAME} base-runtime-spec") from None


def _open_pyz() -> PyzFile:
    """The running .pyz. Raises Refused."""
    from hook.install.bytecode import PyzFile
    from hook.install.steps import Refused

    try:
        return PyzFile(_find_own_path())
    except ValueError as error:
        raise Refused(f"{error}; remedy: run the file that `python3 build.py` makes") from None


def _choose_places(given: options.Install | options.Uninstall, default: str) -> Places:
    from hook.node.paths import Places, choose_hooks_dir

    prefix = given.prefix or default
    return Places(prefix, given.hooks_dir or choose_hooks_dir(prefix), given.destdir or "")


def _find_own_path() -> str:
    """The path of the running file as it was called, which the first line of the .pyz puts into sys.argv."""
    return os.path.abspath(sys.argv[1])


def _find_own_prefix() -> str:
    """The prefix of the running file; /usr if it is not installed."""
    from hook.node.paths import USR, find_prefix

    found = find_prefix(os.path.realpath(_find_own_path()))
    return USR if found is None else found


# --- The table

PLACES = ("resctrl_root", "run_dir", "group_prefix")
HOOK = tuple(dict(Options()))
SHARED, ALL = (*PLACES, "json"), (*HOOK, "json")
"""The options of most commands, and of those that act like a hook."""

WRITERS = ("install", "base-runtime-spec", "bytecode")
"""The commands that do not take the options of the hook from its hooks.d files."""


@dataclass
class Verb:
    """A command. `form`: the model of its own arguments. `run` gets these and the rest of the command line.

    `options`: the shared options that it takes. `limit`: seconds that it may take, its exit status if it is ended then,
    and a text that says what is left undone; only for commands that end by themselves, and that a timer or package
    manager may run. `exclusive`: arguments of which only one may be given.
    """

    form: type[Any]
    run: Callable[[Any, Request], int | None]
    options: tuple[str, ...] = SHARED
    limit: Limit | None = None
    exclusive: tuple[str, ...] = ()

    @property
    def takes_all(self) -> bool:
        """Whether it takes all options of the hook."""
        return set(HOOK) <= set(self.options)


_STEPS_LEFT = "some steps are left; run it again, which does only these"
_NO_BYTECODE = "the program may still lack its bytecode; run it again"
VERBS = {
    "list": Verb(options.List, list_keys),
    "show": Verb(options.Show, show_key),
    "top": Verb(options.Top, top),
    "history": Verb(options.History, show_history, exclusive=("csv", "json")),
    # The units and the chart end metrics and reconcile after 50 s. reconcile asks runtimes for 13 s at most.
    "metrics": Verb(
        options.Metrics, metrics, SHARED, (45, 2, "the metrics are not complete"), ("textfile", "listen", "json")
    ),
    "doctor": Verb(options.Doctor, doctor, SHARED, (100, 1, "not everything was checked")),
    "reconcile": Verb(options.Reconcile, reconcile, ALL, (45, 1, "the next run does the rest")),
    "watch": Verb(options.RunWatch, watch, HOOK),
    "install": Verb(options.Install, install_program, ALL, (100, 2, _STEPS_LEFT)),
    "uninstall": Verb(options.Uninstall, uninstall_program, SHARED, (100, 2, _STEPS_LEFT)),
    "bytecode": Verb(options.MakeBytecode, make_bytecode, SHARED, (100, 2, _NO_BYTECODE)),
    "base-runtime-spec": Verb(options.BaseRuntimeSpec, make_base_runtime_spec, ALL),
    "completion": Verb(options.Completion, complete, ()),
}
