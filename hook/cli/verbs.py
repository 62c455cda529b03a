# SPDX-License-Identifier: Apache-2.0
"""The commands: a function each, with its row in the table of all commands above it,
and their time limits.

A new command is a row of options.py and a function here. A command imports its large
modules when it runs, so that `list` does not load those of `install`, and `watch`, which
runs for months, loads no others.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, count
from typing import TYPE_CHECKING, Any, NamedTuple

from hook import formats, life_turns, names, rare, report, show, system
from hook.errors import HookError, Reason
from hook.models import Options
from hook.node import command, engines, files, paths, programs
from hook.node.paths import Places
from hook.rare import as_hook_error
from hook.words import explain, format_count, who

if TYPE_CHECKING:
    from hook.install.install import Program, Taken
    from hook.reconcile.run import Outcome, Repairs
    from hook.show.history import Jobs
    from hook.show.prometheus import Family, Former
    from hook.show.snapshot import Inventory, SeenKey

Run = Callable[[Namespace, "Request"], "int | None"]

PLACES = paths.OPTIONS
HOOK = tuple(dict(Options()))
JOB = (*PLACES, "snapshot_ttl", "lock_timeout", "rmid_wait", "history", "node")
OF_JOBS = (*PLACES, "node")
JOB_DEFAULTS = {"lock_timeout": 30.0, "history": paths.HISTORY}
"""Those of `run`, `assign` and `release`,
which take no more than OF_JOBS from the hooks.d files of containers.
"""
SHARED, ALL = (*PLACES, "json"), (*HOOK, "json")
"""The options of most commands, and of those that act like a hook."""
JOB_STATUSES = {Reason.BAD_KEY: 65, Reason.NOT_MOUNTED: 69, Reason.NO_CTRL_GROUP: 78}
JOB_STATUSES |= dict.fromkeys((Reason.NO_RMIDS, Reason.RMIDS_IN_LIMBO, Reason.LOCK_TIMEOUT), 75)
"""The exit statuses of `run --strict`, `assign` and `release` by reason, as in sysexits:
EX_DATAERR, EX_UNAVAILABLE, EX_CONFIG, EX_TEMPFAIL.
"""
_TICK = 1.0  # seconds
_SOONEST = 0.001  # of the timer: 0 would stop it
_GRACE = 4.0  # seconds to say what was done, of a command whose time is over


class Usage(Exception):
    """The command line is wrong; the text is for the user."""


class Request(NamedTuple):
    """The part of a command line that commands share."""

    hook: Options
    # The options of the hook on the command line by name, as they were written.
    given: dict[str, list[str]]
    is_json: bool

    @property
    def words(self) -> list[str]:
        """Return the options of the hook on the command line, as they were written."""
        return [*chain.from_iterable(self.given.values())]


class Ended(BaseException):
    """The command has to end; the text says why.

    A BaseException, so that no handler of errors catches it.
    """


# --- The table


class Limit(NamedTuple):
    """The time that a command may take, and how it ends then, and at SIGTERM and SIGINT."""

    seconds: float
    status: int
    undone: str  # what is left, for its last line


class Verb(NamedTuple):
    """A command: a row of the table."""

    run: Run  # gets its own arguments and the rest of the command line; returns the exit status
    options: tuple[str, ...] = SHARED  # the shared options that it takes
    # None: it runs until it is stopped.
    limit: Limit | None = Limit(float("inf"), 2, "nothing was changed")
    exclusive: tuple[str, ...] = ()  # arguments of which only one may be given
    defaults: Mapping[str, Any] = {}  # a job's, which are not those of the hook


VERBS: dict[str, Verb] = {}
WRITERS = ("install", "base-runtime-spec")
"""The commands that do not take the options of the hook from its hooks.d files."""
_LONGEST_PID, _MOST_LABELS = 10, 8
_CLEAR = "\033[H\033[J"  # for a terminal: to the first line, and clear all from there
_STEPS = Limit(100, 2, "some steps are left; run it again, which does only these")


def _verb(name: str, options: tuple[str, ...] = SHARED, **more: Any) -> Callable[[Run], Run]:  # noqa: ANN401
    """Add the function below this line to the table. The arguments are the fields of its Verb."""

    def add(run: Run) -> Run:
        VERBS[name] = Verb(run, options, **more)
        return run

    return add


@contextmanager
def limit_time(deadline: float, seconds: float) -> Iterator[None]:
    """Raise Ended inside the block at the deadline (system.monotonic), that of `seconds`,
    and at SIGTERM and SIGINT.

    The timer ticks, because a signal that comes just before a system call does not interrupt it:
    the next one does. The kernel kills a command that goes on for _GRACE after that: it was stopped
    in a call that no handler can end, or in code whose exceptions Python drops. A kill loses
    nothing: what was done is on record.
    """
    numbers = (signal.SIGALRM, signal.SIGTERM, signal.SIGINT)
    why = ""

    def tick(number: int, _frame: object) -> None:
        nonlocal why
        if number != signal.SIGALRM:
            why = f"by {signal.Signals(number).name}"
        elif system.monotonic() >= deadline:
            why = f"after {seconds:.0f} s"
        # An exception while a program is being started would leave that program behind.
        if why and not programs.is_starting:
            for other in numbers:
                signal.signal(other, signal.SIG_IGN)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, _GRACE)
            raise Ended(why)

    formers = {number: signal.signal(number, tick) for number in numbers}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    signal.setitimer(
        signal.ITIMER_REAL, max(_SOONEST, min(_TICK, deadline - system.monotonic())), _TICK
    )
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, former in formers.items():
            signal.signal(number, former)


# --- Commands that change nothing


@_verb("list")
def list_keys(given: Namespace, request: Request) -> None:
    from hook.show import lists

    node = _take_snapshot(request)
    selected = lists.select_keys(node.keys, given.namespace, given.state, given.sort)
    answer = lists.list_to_json(node, selected, given.limit)
    if request.is_json:
        show.print_answer(answer)
    elif given.what == "unmonitored":
        show.print_answer(lists.format_unmonitored(answer))
    else:
        show.print_answer(
            lists.format_list(answer, show.get_screen(is_wide=given.output == "wide"))
        )


def _take_snapshot(request: Request, *, has_uncharged: bool = False) -> Inventory:
    """Take a snapshot of the node.

    Raises Usage for a directory on the command line that does not exist.

    The screens would be empty, and wrong. `metrics` does not check,
    since its service may start before the first hook.
    """
    from hook.show import snapshot

    for option in ("resctrl_root", "run_dir"):
        if option in request.given and not os.path.exists(getattr(request.hook, option)):
            raise Usage(f"{request.given[option][-1][:100]}: there is no such directory")
    return snapshot.take_snapshot(request.hook, has_uncharged=has_uncharged)


@_verb("show")
def show_key(given: Namespace, request: Request) -> None:
    from hook.show import lists

    node = _take_snapshot(request)
    key = _find_key(node, given.key, request.hook.history or paths.HISTORY)
    of_key = [
        failure
        for failure in node.failures
        if failure.key == key.state.key or failure.container in key.alive
    ]
    answer = lists.key_to_json(key, of_key)
    show.print_answer(answer if request.is_json else lists.format_key(answer))


def _find_key(node: Inventory, name: str, history_file: str) -> SeenKey:
    """Find the key with this name, or the only one with a name that begins so.

    A name counts for the keys that are not completed, if there are any: Podman may give it again.
    Raises Usage; for a container that is not monitored with the reason, for a job in the history
    with the command that shows it.
    """
    from hook.show import findings, history, lists

    keys, broken = (
        {key.state.key: key for key in node.keys},
        {record.name: record for record in node.unreadable},
    )
    named = {
        key: {key, *(lists.list_names(keys[key]) if key in keys else ())}
        for key in (*keys, *broken)
    }
    unmonitored = [failure for failure in node.failures if not failure.monitored]
    known = {failure.key for failure in unmonitored if failure.kind == "job"}.union(named)
    failures = {
        (failure.key in known and failure.key) or failure.container: failure
        for failure in unmonitored
    }
    shown = {}
    for key, failure in failures.items():
        pod = show.list_pod_names(failure.namespace, failure.pod)
        named.setdefault(key, {key}).update(filter(None, (failure.container, failure.name, *pod)))
        shown[key] = findings.name_failed(failure)
    shown.update(
        {key: who(key, *life_turns.name_key(seen_key.state)) for key, seen_key in keys.items()}
    )
    exact = [key for key, names in named.items() if name in names]
    begun = [
        key
        for key, names in named.items()
        if name and any(other.startswith(name) for other in names)
    ]
    matches = (
        [key for key in exact if key not in keys or keys[key].state.completed_at is None]
        or exact
        or begun
    )
    if len(matches) > 1:
        raise Usage(
            f"{name[:80]!r} is ambiguous: {show.name_first(shown.get(key, key) for key in matches)}"
        )
    for key in matches:
        if key in keys:
            return keys[key]
        if key in broken:
            raise Usage(f"{broken[key].file}: {broken[key].problem}")
        why = f"{failures[key].reason}: {failures[key].problem}"
        what = "job" if failures[key].kind == "job" else "container"
        raise Usage(f"{what} {shown[key]} is not monitored: {why}; see list unmonitored")
    ended = history.find_ended(history_file, name)
    raise Usage(f"no key, pod or container matches {name[:80]!r}{ended and '; '}{ended}")


@_verb("top", limit=None)
def top(given: Namespace, request: Request) -> None:
    """Print a table after each interval, on a terminal in the place of the last one;
    an interrupt is the usual end.
    """
    from hook.show import lists, snapshot

    most = given.count or (None if show.is_terminal() else 1)
    redraws = show.is_terminal() and most != 1
    former = _take_snapshot(request, has_uncharged=True)
    with suppress(KeyboardInterrupt):
        for number in count(1):
            system.sleep(given.interval)
            node = snapshot.take_snapshot(request.hook, has_uncharged=True)
            rates = snapshot.compare(former, node, rare.now_utc())
            former = node
            if given.namespace:  # the node's total stays that of all keys
                keys = [
                    (key, use)
                    for key, use in rates.keys
                    if key.state.pod_namespace in given.namespace
                ]
                rates = rates._replace(keys=keys)
            answer = lists.rates_to_json(rates, given.sort)
            if request.is_json:
                show.print_answer(answer)
            else:
                lines = lists.format_rates(answer, show.get_screen(is_wide=given.output == "wide"))
                show.print_answer(
                    [_CLEAR + lines[0], *lines[1:]] if redraws else lines + [""] * (number != most)
                )
            if number == most:
                return


@_verb("history", exclusive=("csv", "json"))
def show_history(given: Namespace, request: Request) -> int:
    from hook.show import history

    places = given.history or [paths.HISTORY]
    if "" in places:
        raise Usage("--history: no file; without this option it is the one that hooks write")
    now = system.unix_time()
    try:
        since = history.parse_time("--since", given.since, now)
        until = history.parse_time("--until", given.until, now)
        if until and since >= until:
            raise ValueError(
                f"--since, {history.to_local(since)}, is not before --until, "
                f"{history.to_local(until)}"
            )
    except ValueError as error:
        raise Usage(str(error)) from None
    if given.follow:
        return _follow_history(given, request, places, since)
    with ExitStack() as opened:
        try:
            jobs = opened.enter_context(
                history.Jobs(places, given.name, since, until, given.label.items())
            )
        except files.Unreadable as error:
            why = (
                "a hook with --history=FILE writes it when a container ends; `install "
                "--history=FILE` sets that option"
            )
            if Places(_find_own_prefix()).is_for_jobs():
                why = "the first job that ends makes it: see list, and reconcile"
            raise Usage(f"cannot read {error}; {why}") from None
        return _print_history(given, request, jobs)


def _follow_history(given: Namespace, request: Request, places: list[str], since: str) -> int:
    from hook.show import follow

    others = [
        f"--{name}" for name in ("until", "by", "sort", "limit") if getattr(given, name) is not None
    ]
    if others := [*others, *(["--csv"] if given.csv else [])]:
        raise Usage(f"--follow prints each job as it ends, without {' and '.join(others)}")
    try:
        follow.follow(
            lambda: follow.Follower(places, given.name, since, given.label.items()),
            is_json=request.is_json,
        )
    except files.Unreadable as error:
        raise Usage(f"cannot read {error}") from None
    return 0


def _print_history(given: Namespace, request: Request, jobs: Jobs) -> int:
    from hook.show import history

    rows = history.make_rows(jobs, given.by, given.sort, given.limit)
    absent = jobs.explain_absent(given.by)
    if jobs.absent and len(jobs.absent) == len(given.name):
        # The job may be in a file that was not read.
        raise Usage("; ".join(filter(None, [absent, jobs.explain()])))
    if request.is_json:
        show.write(history.rows_to_json(jobs, rows))
    elif given.csv:
        show.write(history.format_csv(rows), "utf-8")
    else:
        show.print_answer(history.format_rows(jobs, rows, show.get_screen()))
    for problem in filter(None, [jobs.explain() if given.csv else "", absent]):
        report.write_line(problem, to_syslog=False)
    return 2 if absent else int(bool(jobs.problems))


# The units and the chart end metrics and reconcile after 50 s.
_METRICS = Limit(45, 2, "the metrics are not complete")


@_verb(
    "metrics",
    (*PLACES, "history", "json"),
    limit=_METRICS,
    exclusive=("textfile", "listen", "json"),
)
def metrics(given: Namespace, request: Request) -> None:
    from hook.node.sums import find_history
    from hook.show import prometheus, snapshot
    from hook.show.bill import read_bill

    if given.created and given.listen is None:
        raise Usage("--created needs --listen: only OpenMetrics has these samples")

    def measure(former: Former | None = None) -> list[Family]:
        node = snapshot.take_snapshot(request.hook, has_uncharged=True)
        bill = read_bill(request.hook, node.keys)
        return prometheus.make_families(node, former, bill, has_created=given.created)

    if given.listen is not None:
        from hook.show import server

        shown = prometheus.Shown(find_history(request.hook))

        def measure_further(former: Former) -> list[Family]:
            families = measure(shown.add(former))
            shown.keep(families)
            return families

        server.serve(parse_address(given.listen), measure_further, show.write)
    elif given.textfile is not None:
        families = measure(prometheus.read_former(given.textfile))
        prometheus.write_textfile(given.textfile, prometheus.format_text(families))
    elif request.is_json:
        show.print_answer(prometheus.to_json(measure()))
    else:
        show.write(prometheus.format_text(measure()))


def parse_address(text: str) -> tuple[str, int]:
    """Parse `ADDRESS:PORT`, `[IPV6]:PORT` or `PORT`.

    Host names are refused: they could lead anywhere. Raises Usage.
    """
    import ipaddress

    address, _, port = text.rpartition(":")
    address = address[1:-1] if address[:1] == "[" and address[-1:] == "]" else address
    try:
        if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535):
            raise ValueError(port)
        return str(ipaddress.ip_address(address or "127.0.0.1")), int(port)
    except ValueError:
        raise Usage(
            f"--listen: {text[:80]!r} is not ADDRESS:PORT, as 127.0.0.1:9753 or [::1]:9753 are"
        ) from None


@_verb("doctor", limit=Limit(100, 1, "not everything was checked"), exclusive=("report", "json"))
def doctor(given: Namespace, request: Request) -> int:
    from hook.doctor import format_findings, to_objects
    from hook.doctor.checks import Site, examine
    from hook.doctor.machine import make_report
    from hook.show.findings import FAILURE, Finding

    if given.report:
        show.print_answer(make_report(request.hook))
        return 0
    directories = tuple(given.hooks_dir or engines.list_hooks_dirs())
    site = Site(
        Places(given.prefix or _find_own_prefix()), request.hook, directories, _find_own_path()
    )
    findings: list[Finding] = []
    try:
        findings.extend(examine(site))  # takes one by one: those before the end stay
    except Ended as error:
        remedy = "see why this takes so long; this check and those after it are not complete"
        findings.append(
            Finding(FAILURE, site.checking, f"doctor ended {error}, during this check", remedy)
        )
    is_well = all(finding.level != FAILURE for finding in findings)
    if request.is_json:
        show.print_answer({"well": is_well, "findings": to_objects(findings)})
    else:
        show.print_printable(format_findings(findings))
    return 0 if is_well else 1


# --- Commands that change something


# It asks runtimes for 8 s at most.
@_verb("reconcile", ALL, limit=Limit(45, 1, "the next run does the rest"))
def reconcile(given: Namespace, request: Request) -> int:
    from hook.node import runtimes, sums
    from hook.reconcile.run import Repairs, plan_repairs, repair
    from hook.reconcile.survey import Scope

    live = _read_live_keys(given.live) if given.live is not None else None
    # Only if given: `reconcile` alone does not shorten linger times.
    longest = request.hook.linger if "linger" in request.given else None
    asks = runtimes.find_runtimes(given.runtime_root).list_states if given.adopt else None
    if len(given.sum_label) > sums.MOST_LABELS:
        raise Usage(
            f"--sum-label: {sums.MOST_LABELS} at most, since each value of a label has series of "
            "its own"
        )
    scope = Scope(live, longest, asks, given.sum_label, given.checkpoint)
    if given.dry_run:
        result = plan_repairs(request.hook, scope)
        if not request.is_json:
            lines = [line for outcome in result.outcomes for line in format_outcome(outcome)]
            show.print_printable(lines, dry_run=True)
            show.print_printable(format_left(result))
    else:
        # The collector takes a quarter of the time on tens of thousands of records, and finds no
        # cycle.
        gc.disable()
        log = RepairLog()
        result = Repairs(None if request.is_json else log.note)
        try:
            repair(request.hook, scope, result)
        except Ended as error:
            result.ended = str(error)
        if not request.is_json:
            log.end(result)
    if request.is_json:
        show.print_answer(result_to_json(result, dry_run=given.dry_run))
    return 0 if result.is_whole else 1


def _read_live_keys(path: str) -> set[str]:
    """Read the keys in a file, one a line.

    Raises Usage for an invalid one: skipped, a live key would end.
    """
    try:
        if path == "-":
            text = sys.stdin.read(files.CONFIGURATION + 1)
        else:
            text = files.read_text(os.path.abspath(path), files.CONFIGURATION)
        if len(text) > files.CONFIGURATION:
            raise ValueError(f"more than {files.CONFIGURATION} bytes")
        return {
            names.check_container_id(line.strip()) for line in text.splitlines() if line.strip()
        }
    except (files.Unreadable, ValueError) as error:
        raise Usage(f"--live={path}: {error}") from None


@_verb("watch", HOOK, limit=None)
def watch(_given: Namespace, request: Request) -> None:
    from hook.watch import run

    run(request.hook)


@_verb("view", PLACES, limit=None)
def keep_view(given: Namespace, request: Request) -> int:
    from hook import view

    if not given.once:
        view.keep(request.hook)
        return 0
    problems = view.make_once(request.hook)
    view.say_first([str(explain(problem)) for problem in problems])
    return 1 if problems else 0


@_verb("run", JOB, limit=None, defaults=JOB_DEFAULTS)
def run_job(given: Namespace, request: Request) -> int:
    from hook import jobs

    rare.ignore_zone()
    if not given.command:
        raise Usage(f"run: no command; write it after --, as in {paths.NAME} run -- make")
    labels = dict([*given.label.items()][:_MOST_LABELS])
    if len(given.label) > len(labels):
        problem = f"{len(given.label)} labels: a job has {_MOST_LABELS} at most"
        if given.strict:
            raise Usage(f"run: {problem}")
        report.write_line(f"run: {problem}, and these are the first", to_syslog=False)
    if given.wait:
        from hook.jobs import wait

        if (status := wait.fork(request.hook)) is not None:
            return status
    try:
        jobs.run(request.hook, given.key, given.command, labels, is_strict=given.strict)
    except command.Unstartable as error:
        return command.explain(error)


@_verb("assign", (*JOB, "json"), limit=None, defaults=JOB_DEFAULTS)
def assign_to_job(given: Namespace, request: Request) -> None:
    from hook import jobs

    if given.key is None or not given.pid or len(given.label) > _MOST_LABELS:
        raise Usage(
            f"assign: wants --key=NAME, the pids of processes, and {_MOST_LABELS} labels at most"
        )
    outcomes = _read_pids("assign", given.pid, "failed")
    found = jobs.find_processes(outcomes, request.hook.history, given.label)
    node = jobs.open_node("assign", request.hook, given.key, found)
    with _answer(request, given.key, outcomes), node as context:
        if not given.force:
            jobs.refuse_service(outcomes)
        jobs.assign(context, given.key, outcomes, given.label, found)


@_verb("release", (*JOB, "json"), limit=None, defaults=JOB_DEFAULTS)
def release_job(given: Namespace, request: Request) -> None:
    from hook import jobs

    if given.key is None:
        raise Usage("release: wants --key=NAME")
    outcomes = _read_pids("release", given.pid, "not released") if given.pid else None
    with _answer(request, given.key, outcomes) as answer:
        with jobs.open_node("release", request.hook, given.key) as context:
            answer["released"] = jobs.release(context, given.key, outcomes)
        if not answer["released"]:
            problem = f"there is no job {given.key}: it has ended, or was never there"
            report.write_line(f"release: {problem}", to_syslog=False)


def _read_pids(verb: str, texts: list[str], outcome: str) -> dict[int, str]:
    """Read the pids on a command line; returns the present outcome of each."""
    for text in texts:
        if not (text.isascii() and text.isdecimal() and len(text) < _LONGEST_PID):
            raise Usage(f"{verb}: {text[:80]!r} is no pid")
    return dict.fromkeys(map(int, texts), outcome)


@contextmanager
def _answer(
    request: Request, key: str, outcomes: dict[int, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Print the JSON about a job at the end of the block, also of one that fails: `released`,
    or a row for each pid.
    """
    answer: dict[str, Any] = {
        "key": key,
        "reason": None,
        "problem": None,
        "hint": None,
        "released": False,
    }
    try:
        yield answer
    except Exception as error:
        failure = as_hook_error("cannot read or write a file", error)
        words = explain(failure)
        answer.update(reason=failure.reason, problem=words.problem, hint=words.hint)
        raise
    finally:
        if outcomes is not None:
            del answer["released"]
            answer["pids"] = [{"pid": pid, "outcome": outcome} for pid, outcome in outcomes.items()]
        if request.is_json:
            show.print_answer(answer)


@_verb("install", ALL, limit=_STEPS)
def install_program(given: Namespace, request: Request) -> None:
    from hook.install.install import SERVICES, Wanted, install

    places = Places(given.prefix or paths.USR, given.hooks_dir, given.destdir or "")
    targets = paths.FOR[given.targets] if given.targets else tuple(paths.find_targets(places.top))
    if not given.targets and not targets:
        remedy = (
            "use --for=jobs on a node without containers, else --for=kubernetes, podman or both"
        )
        raise Usage(f"found none of {', '.join(paths.RUNTIMES)}; remedy: {remedy}")
    if not targets and request.words:
        problem = f"--for={given.targets} writes no hooks.d file that could keep {request.words[0]}"
        remedy = (
            "give options of the hook to run and assign"
            if given.targets == "jobs"
            else "change the hooks.d files"
        )
        raise Usage(f"{problem}; remedy: {remedy}")
    services = tuple(name for name in SERVICES if getattr(given, name))
    wanted = Wanted(
        _open_program(), places, targets, tuple(request.words), given.adopt, given.force, services
    )
    _print_steps(request, install(wanted, dry_run=given.dry_run), [], {"dry_run": given.dry_run})


def _print_steps(request: Request, taken: Taken, remarks: list[str], more: dict[str, Any]) -> None:
    """Print steps, a line for each and one for its problem, and remarks on them.

    JSON has `more` besides.
    """
    if request.is_json:
        objects = [
            {"step": step.verb, "what": step.what, "problem": problem} for step, problem in taken
        ]
        show.print_answer({**more, "steps": objects})
    else:
        from hook.install.install import format_steps

        show.print_printable(format_steps(taken), dry_run=more["dry_run"])
        show.print_printable(remarks)


@_verb("uninstall", limit=_STEPS)
def uninstall_program(given: Namespace, request: Request) -> int:
    from hook.install.install import format_removal, uninstall

    places = Places(given.prefix or _find_own_prefix(), given.hooks_dir, given.destdir or "")
    taken, remains = uninstall(places, request.hook, force=given.force, dry_run=given.dry_run)
    _print_steps(
        request,
        taken,
        format_removal(taken, remains),
        {"dry_run": given.dry_run, **remains._asdict()},
    )
    return 1 if remains.unfinished else 0


@_verb("base-runtime-spec", ALL)
def make_base_runtime_spec(given: Namespace, request: Request) -> None:
    """Print the specification on stdin with the hook that install would write."""
    from hook.install.install import Wanted, add_hook, make_hook_file

    places, target = Places(given.prefix or _find_own_prefix()), paths.KUBERNETES
    wanted = Wanted(_open_program(), places, (target,), tuple(request.words))
    called = formats.loads(make_hook_file(wanted, target))["hook"]
    try:
        show.print_answer(add_hook(formats.loads(sys.stdin.read()), called))
    except (ValueError, OSError) as error:
        raise Usage(f"{error}; remedy: use ctr oci spec | {paths.NAME} base-runtime-spec") from None


@_verb("completion", ())
def complete(given: Namespace, _request: Request) -> None:
    show.write(_open_program().text(f"packaging/completions/{given.shell}"))


def _open_program() -> Program:
    """Open the running file. Raises Usage."""
    from hook.install.install import Program

    try:
        return Program(_find_own_path())
    except ValueError as error:
        raise Usage(f"{error}; remedy: run the file that `python3 build.py` makes") from None


def _find_own_path() -> str:
    """Return the path of the running file as it was called,
    which what starts the program puts into sys.argv.
    """
    return os.path.abspath(sys.argv[1])


def _find_own_prefix() -> str:
    """Return the prefix of the running file, or /usr if it is not installed."""
    prefix = paths.find_prefix(os.path.realpath(_find_own_path()))
    return paths.USR if prefix is None else prefix


# --- The output of reconcile: each action when it is done, and at most ten failures a run. JSON has
# all

MOST_FAILURES = 10
"""Failures that a run prints, and problems that it leaves: `list` and the metrics have them all,
and a timer's run prints them once a minute.
"""
_ABOUT = ("key", "container", "path", "namespace", "pod", "name", "why")


class RepairLog:
    """Prints the actions of a run, also if it is ended early.

    A closed pipe or a full disk stops no action.
    """

    def __init__(self) -> None:
        self._failed = 0
        self._lost: HookError | None = None  # why an action could not be printed

    def note(self, outcome: Outcome) -> None:
        """Print an action that has ended."""
        if outcome.problem is not None:
            self._failed += 1
        if outcome.problem is None or self._failed <= MOST_FAILURES:
            try:
                show.print_printable(format_outcome(outcome))
            except BrokenPipeError:
                pass
            except HookError as error:
                self._lost = error

    def end(self, result: Repairs) -> None:
        """Print what the run leaves. Raises HookError if something could not be printed."""
        lines = format_left(result)
        if self._failed > MOST_FAILURES:
            lines.append(
                f"{format_count(self._failed - MOST_FAILURES, 'further action')} failed: see list"
            )
        if result.ended is not None:
            at = f"it was at: {result.at}" if result.at is not None else "it was looking for more"
            done = format_count(len(result.outcomes) - self._failed, "action")
            lines.append(
                f"ended {result.ended}: {done} done, {result.undone} left for the next run; {at}"
            )
        with suppress(BrokenPipeError):
            show.print_printable(lines)
        if self._lost is not None:
            raise self._lost


def format_outcome(outcome: Outcome) -> list[str]:
    """Format an action: a line, and one each for its problem and its remark."""
    problem = f"  failed: {outcome.problem}" if outcome.problem is not None else None
    remark = f"  {outcome.remark}" if outcome.remark is not None else None
    return [*filter(None, (str(outcome.action), problem, remark))]


def format_left(result: Repairs) -> list[str]:
    """Format the problems that reconcile may not change, a line each."""
    lines = show.list_first(
        result.left,
        MOST_FAILURES,
        lambda more: f"{format_count(more, 'further problem')} (see reconcile --json)",
    )
    return [f"left: {line}" for line in lines]


def result_to_json(result: Repairs, *, dry_run: bool) -> dict[str, Any]:
    """Make the object that `reconcile --json` prints."""
    actions = []
    for outcome in result.outcomes:
        done = outcome.action
        about = zip(_ABOUT, (done.key, done.container, done.path, *done.names, done.why))
        problems = {"problem": outcome.problem, "remark": outcome.remark}
        actions.append(
            {"action": done.verb, **{name: text or None for name, text in about}, **problems}
        )
    return {
        "dry_run": dry_run,
        "actions": actions,
        "left": result.left,
        "ended": result.ended,
        "undone": result.undone,
    }
