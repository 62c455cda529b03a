# SPDX-License-Identifier: Apache-2.0
"""The commands: a function each, with its row in the table of all commands above it, and their time limits.

A new command is a model in options.py and a function here. A command imports its modules when it runs, so that `list`
does not load those of `install`, and `watch`, which runs for months, loads no others.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count

from hook import system
from hook.cli import options
from hook.models import Options
from hook.show.terminal import get_screen, is_terminal, print_answer, print_printable, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from hook.doctor import Finding, Site
    from hook.install.bytecode import PyzFile
    from hook.install.steps import Taken
    from hook.node.paths import Places
    from hook.show.prometheus import Choice, Family, Former
    from hook.show.snapshot import Inventory, SeenKey

PLACES = ("resctrl_root", "run_dir", "group_prefix")
HOOK = tuple(dict(Options()))
SHARED, ALL = (*PLACES, "json"), (*HOOK, "json")
"""The options of most commands, and of those that act like a hook."""
_PATIENCE = 2.0  # seconds after which a terminal shows that a command is at work
_TICK = 1.0  # seconds


class Usage(Exception):
    """The command line is wrong; the text is for the user."""


@dataclass(frozen=True)
class Request:
    """The part of a command line that commands share."""

    hook: Options
    words: list[str]  # the options of the hook, as they were written
    is_json: bool


class Ended(BaseException):
    """The command has to end; the text says why. A BaseException, so that no handler of errors catches it."""


# --- The table


@dataclass(frozen=True)
class Limit:
    """The time that a command may take, and how it ends then, and at SIGTERM and SIGINT."""

    seconds: float
    status: int
    undone: str  # what is left, for its last line


@dataclass
class Verb:
    """A command: a row of the table."""

    form: type[Any]  # the model of its own arguments
    run: Callable[[Any, Request], int | None]  # gets these and the rest of the command line; returns the exit status
    options: tuple[str, ...]  # the shared options that it takes
    limit: Limit | None  # None: it runs until it is stopped, or reads what a person types
    exclusive: tuple[str, ...]  # arguments of which only one may be given

    @property
    def takes_all(self) -> bool:
        """Whether it takes all options of the hook."""
        return set(HOOK) <= set(self.options)


VERBS: dict[str, Verb] = {}
WRITERS = ("install", "base-runtime-spec", "bytecode")
"""The commands that do not take the options of the hook from its hooks.d files."""
_ENDLESS = Limit(float("inf"), 2, "nothing was changed")
_STEPS = Limit(100, 2, "some steps are left; run it again, which does only these")


def _verb(
    name: str,
    form: type[Any],
    options: tuple[str, ...] = SHARED,
    *,
    limit: Limit | None = _ENDLESS,
    exclusive: tuple[str, ...] = (),
) -> Callable[[Callable[[Any, Request], int | None]], Callable[[Any, Request], int | None]]:
    """Add the function below this line to the table."""

    def add(run: Callable[[Any, Request], int | None]) -> Callable[[Any, Request], int | None]:
        VERBS[name] = Verb(form, run, options, limit, exclusive)
        return run

    return add


@contextmanager
def limit_time(name: str, seconds: float) -> Iterator[None]:
    """Raise Ended inside the block when its time is over, and at SIGTERM and SIGINT.

    The timer ticks, because a signal that comes just before a system call does not interrupt it: the next one does. The
    first tick says on a terminal that the command is still at work. What no signal can interrupt is left to
    TimeoutStartSec of the unit.
    """
    numbers = (signal.SIGALRM, signal.SIGTERM, signal.SIGINT)
    over, why, is_shown = system.monotonic() + seconds, "", False

    def tick(number: int, _frame: object) -> None:
        nonlocal why, is_shown
        if number != signal.SIGALRM:
            why = f"by {signal.Signals(number).name}"
        elif system.monotonic() >= over:
            why = f"after {seconds:.0f} s"
        elif not is_shown and sys.stderr is not None and sys.stderr.isatty():
            is_shown = True
            with suppress(OSError, RuntimeError):  # the terminal is gone, or the command is just writing to it
                sys.stderr.write(f"{name}: still at work after {_PATIENCE:.0f} s\n")
        # An exception while a program is being started would leave that program behind.
        if why and not getattr(sys.modules.get("hook.node.programs"), "is_starting", False):
            for it in numbers:
                signal.signal(it, signal.SIG_IGN)
            raise Ended(why)

    formers = {it: signal.signal(it, tick) for it in numbers}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    signal.setitimer(signal.ITIMER_REAL, min(_PATIENCE, seconds), _TICK)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for it, former in formers.items():
            signal.signal(it, former)


# --- Commands that change nothing


@_verb("list", options.List)
def list_keys(given: options.List, request: Request) -> None:
    from hook.show import lists, snapshot

    _check_directories(request)
    seen = snapshot.take_snapshot(request.hook)
    selected = lists.select_keys(seen.keys, given.namespace, given.state, given.sort)
    if request.is_json:
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


@_verb("show", options.Show)
def show_key(given: options.Show, request: Request) -> None:
    from hook.show import lists, snapshot

    _check_directories(request)
    seen = snapshot.take_snapshot(request.hook)
    key = _find_key(seen, given.key)
    of_key = [it for it in seen.failures if it.key == key.state.key or it.container in key.alive]
    if request.is_json:
        print_answer(lists.key_to_json(key, of_key))
    else:
        print_answer(lists.format_key(key, of_key, get_screen(is_wide=True), is_wide=given.output == "wide"))


def _find_key(seen: Inventory, name: str) -> SeenKey:
    """Find the key with this name, or the only one with a name that begins so.

    A name counts for the keys that are not completed, if there are any: Podman may give it again. Raises Usage; for a
    container that is not monitored with the reason.
    """
    from hook.report import who
    from hook.show import lists
    from hook.show.terminal import list_pod_names, name_first

    keys, broken = {it.state.key: it for it in seen.keys}, {it.name: it for it in seen.unreadable}
    named = {key: {key, *(lists.list_names(keys[key]) if key in keys else ())} for key in (*keys, *broken)}
    failures = {it.key if it.key in named else it.container: it for it in seen.failures if not it.monitored}
    for key, it in failures.items():
        pod = list_pod_names(it.namespace, it.pod)
        named.setdefault(key, set()).update(filter(None, (it.container, it.name, *pod)))
    exact = [key for key, names in named.items() if name in names]
    begun = [key for key, names in named.items() if name and any(it.startswith(name) for it in names)]
    found = [key for key in exact if key not in keys or keys[key].state.completed_at is None] or exact or begun
    shown = {key: who(it.container, it.namespace, it.pod, it.name) for key, it in failures.items()}
    shown |= {key: who(key, it.state.pod_namespace, it.state.pod_name, it.state.name) for key, it in keys.items()}
    if len(found) > 1:
        raise Usage(f"{name[:80]!r} is ambiguous: {name_first(shown.get(key, key) for key in found)}")
    for key in found:
        if key in keys:
            return keys[key]
        if key in broken:
            raise Usage(f"{broken[key].file}: {broken[key].problem}")
        why = f"{failures[key].reason}: {failures[key].problem}"
        raise Usage(f"container {shown[key]} is not monitored: {why}; see list unmonitored")
    raise Usage(f"no key, pod or container matches {name[:80]!r}")


@_verb("top", options.Top, limit=None)
def top(given: options.Top, request: Request) -> None:
    """Print a table after each interval; an interrupt is the usual end."""
    from hook.show import lists, snapshot

    _check_directories(request)
    most = given.count or (None if is_terminal() else 1)
    former = snapshot.take_snapshot(request.hook, has_uncharged=True)
    with suppress(KeyboardInterrupt):
        for number in count(1):
            system.sleep(given.interval)
            seen = snapshot.take_snapshot(request.hook, has_uncharged=True)
            rates = snapshot.compare(former, seen, system.now_utc())
            former = seen
            if given.namespace:  # the node's total stays that of all keys
                keys = [it for it in rates.keys if it.key.state.pod_namespace in given.namespace]
                rates = replace(rates, keys=keys)
            if request.is_json:
                print_answer(lists.rates_to_json(rates))
            else:
                lines = lists.format_rates(rates, given.sort, get_screen(is_wide=given.output == "wide"))
                print_answer(lines + [""] * (number != most))
            if number == most:
                return


@_verb("history", options.History, exclusive=("csv", "json"))
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
        write(history.format_csv(found, given.by))
        if text := found.explain():
            report.say(text, to_syslog=False)
    elif given.by is None:
        print_answer(history.format_jobs(found, get_screen()))
    else:
        print_answer(history.format_sums(found, given.by, get_screen()))


# The units and the chart end metrics and reconcile after 50 s.
@_verb(
    "metrics",
    options.Metrics,
    limit=Limit(45, 2, "the metrics are not complete"),
    exclusive=("textfile", "listen", "json"),
)
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
        print(prometheus.format_text(_measure(request.hook, choice)), end="", flush=True)


def _serve_metrics(address: tuple[str, int], hook: Options, choice: Choice) -> None:
    """Serve metrics. Each answer gets the samples of the one before, so that no counter dips."""
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
    """Take a snapshot, and make its metrics. No counter dips below the `former` samples.

    Raises HookError as take_snapshot does, and `usage` for an event that does not exist on this machine.
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


@_verb("doctor", options.Doctor, limit=Limit(100, 1, "not everything was checked"))
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
    from hook.doctor import FAILURE, Finding
    from hook.doctor.checks import CHECKS

    findings: list[Finding] = []
    for check in CHECKS:
        try:
            for finding in check.run(site):
                findings.append(finding)
        except Ended as error:
            remedy = "see why this takes so long; this check and those after it are not complete"
            return [*findings, Finding(FAILURE, check.subject, f"doctor ended {error}, during this check", remedy)]
    return findings


# --- Commands that change something


# It asks runtimes for 13 s at most.
@_verb("reconcile", options.Reconcile, ALL, limit=Limit(45, 1, "the next run does the rest"))
def reconcile(given: options.Reconcile, request: Request) -> int:
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
    """Read the keys in a file, one a line. Raises Usage for an invalid one: skipped, a live key would end."""
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


@_verb("watch", options.RunWatch, HOOK, limit=None)
def watch(_given: options.RunWatch, request: Request) -> None:
    from hook.watch import run

    run(request.hook)


@_verb("install", options.Install, ALL, limit=_STEPS)
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


@_verb("uninstall", options.Uninstall, limit=_STEPS)
def uninstall_program(given: options.Uninstall, request: Request) -> int:
    from hook.install.install import format_removal, uninstall

    places, hook = _choose_places(given, _find_own_prefix()), request.hook
    done = uninstall(places, hook, force=given.force, dry_run=given.dry_run)
    more = {"dry_run": given.dry_run, "unfinished": done.unfinished, "left": done.left}
    _print_steps(request, done.taken, format_removal(done), more)
    return 1 if done.unfinished else 0


@_verb(
    "bytecode",
    options.MakeBytecode,
    limit=Limit(100, 2, "the program may still lack its bytecode; run it again"),
)
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


@_verb("base-runtime-spec", options.BaseRuntimeSpec, ALL)
def make_base_runtime_spec(given: options.BaseRuntimeSpec, request: Request) -> None:
    """Print the specification on stdin with the hook that install would write."""
    from hook.install.install import Wanted, add_hook, make_hook_file
    from hook.install.steps import Refused
    from hook.node.paths import KUBERNETES, NAME, Places

    places = Places(given.prefix or _find_own_prefix())
    wanted = Wanted(_open_pyz(), places, (KUBERNETES,), tuple(request.words), request.hook)
    called = system.loads(make_hook_file(wanted, KUBERNETES))["hook"]
    try:
        print_answer(add_hook(system.loads(sys.stdin.read()), called))
    except ValueError as error:
        raise Refused(f"{error}; remedy: use ctr oci spec | {NAME} base-runtime-spec") from None


@_verb("completion", options.Completion, ())
def complete(given: options.Completion, _request: Request) -> None:
    write(_open_pyz().text(f"packaging/completions/{given.shell}"))


def _open_pyz() -> PyzFile:
    """Open the running .pyz. Raises Refused."""
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
    """Return the path of the running file as it was called, which the first line of the .pyz puts into sys.argv."""
    return os.path.abspath(sys.argv[1])


def _find_own_prefix() -> str:
    """Return the prefix of the running file, or /usr if it is not installed."""
    from hook.node.paths import USR, find_prefix

    found = find_prefix(os.path.realpath(_find_own_path()))
    return USR if found is None else found
