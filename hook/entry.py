# SPDX-License-Identifier: Apache-2.0
"""The way from the command line and the OCI state on stdin to createRuntime or poststop.

Read `run_stage`, then `create.create_runtime` or `remove.poststop`.
"""

from __future__ import annotations

import sys

from hook import create, identity, jsontext, poststop, procfs, resctrl, system
from hook.models import Failure, Options, State, ValidationError
from hook.store import RunDir
from hook.view import View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any, TypeVar

    from hook.errors import HookError
    from hook.models import KeyState, Model

    ModelT = TypeVar("ModelT", bound=Model)

STDIN_LIMIT = 4 << 20
STDIN_PATIENCE = 10.0
STAGES = ("hook", "createRuntime", "poststop")
_LONGEST_NUMBER = 20
_NUMBER = "0123456789."  # int and float accept more (signs, 1_0, other scripts), which is a typo here


class Call:
    """One call of the hook; immutable.

    `given`: the options, and a complaint about each bad word of the command line. `name`: the container's ID or, if the
    state has none, a stable name for its record. `bundle`: None if the state has none. `container`: None at poststop,
    and if the state could not be read.
    """

    def __init__(
        self,
        stage: str,
        given: tuple[Options, list[str]],
        name: str,
        bundle: str | None,
        container: identity.Container | None,
    ) -> None:
        self.stage = stage
        self.options, self.complaints = given
        self.name = name
        self.bundle = bundle
        self.container = container


class Context:
    """The surroundings of a stage: resctrl, the run directory, the options. `freed` counts the RMIDs given back.

    `late_cpu`: by key, CPU seconds that tasks had used before they were moved in; Tally saves them. For these,
    `late_threads`: what each thread (number and start time) had used when it was moved; `looked_at` and `left_outside`:
    when the last complete reconcile looked, and of which containers it left threads outside.
    `names_history`: the record of each key that it starts, or adds a container to, names its --history. That of
    reconcile is only for keys that are no pods, and whose hook has named no file.
    `longest_linger`: seconds, a limit on the linger time in each key's record; None: no limit.
    """

    def __init__(
        self, kernel: resctrl.Resctrl, run: RunDir, options: Options, *, longest_linger: int | None = None
    ) -> None:
        self.resctrl = kernel
        self.run = run
        self.options = options
        self.longest_linger = longest_linger
        self.freed = 0
        self.names_history = True
        self.late_cpu: dict[str, float] = {}
        self.late_threads: dict[tuple[int, int], float] = {}
        self.looked_at = 0.0
        self.left_outside: Collection[str] = ()
        self.view = View(run, kernel.root)

    def history_of(self, state: KeyState) -> str:
        """The file for a key's line in the history; empty: there is no line."""
        return state.history_file or (self.options.history if state.kind != "pod" else "")


def start() -> None:
    """Run the program; does not return.

    The file's first line makes Python run `-c` code, so sys.argv[1] is the file's path, and the command line follows.
    That code also makes each end other than `leave` exit with 0: a hook that fails must not fail the container.
    """
    system.leave(dispatch(sys.argv[2:]))


def dispatch(arguments: list[str]) -> int:
    """Run the command line; returns the exit status, which is 0 for a stage without `--strict`."""
    system.ensure_standard_descriptors()
    system.set_umask()
    if arguments and arguments[0] in STAGES and "--help" not in arguments:  # a runtime started us
        try:
            return run_stage(arguments[0], arguments[1:])
        except BaseException as error:  # noqa: BLE001  no exception may fail a container
            from hook import report

            return report.survive(error, arguments[0], arguments[1:])
    from hook.cli import command_line

    return command_line.main(arguments)


def run_stage(verb: str, words: list[str]) -> int:
    """Read a call and serve it; returns the exit status."""
    text, is_whole = b"", False
    call: Call | None = None
    error: BaseException | None = None
    try:
        text, is_whole = system.read_stdin(STDIN_LIMIT, STDIN_PATIENCE)
    except OSError as caught:
        error = caught
    if procfs.in_user_namespace():
        return 0
    given = parse(words)
    try:
        if is_whole:
            state = State.model_validate(jsontext.loads(text.decode()))
            call = make_call(verb, given, state, state.annotations or {})
    except BaseException as caught:  # noqa: BLE001  reported, with what is known of the container
        error = caught
    if call is None:
        from hook import report

        return report.serve_odd_state(verb, given, text, error)
    return serve_call(call)


def make_call(verb: str, given: tuple[Options, list[str]], state: State, annotations: dict[str, str] | None) -> Call:
    """Make a call from a valid state. HookError `bad_state`: createRuntime without a pid."""
    if name_stage(verb, state.status) == "poststop":
        return Call("poststop", given, state.id, state.bundle, None)
    if not state.pid:
        from hook import report

        raise report.state_error("the state of a container that is being created has no pid")
    container = identity.Container(state.id, state.pid, state.bundle, annotations)
    if container.pod.is_podmans:
        from hook import conmon

        conmon.name_container(container)
    return Call("createRuntime", given, state.id, state.bundle, container)


def name_stage(verb: str, status: object) -> str:
    """The stage of a verb; of `hook` the container's status decides."""
    if verb != "hook":
        return verb
    return "poststop" if status == "stopped" else "createRuntime"


def serve_call(call: Call, problem: HookError | None = None) -> int:
    """Act, report, count; returns the exit status. `problem`: a defect of the state, to report after the act."""
    run_dir: RunDir | None = None
    try:
        kernel = resctrl.Resctrl(call.options.resctrl_root)
        if call.container is not None and not kernel.exists():
            from hook import report

            return report.say_no_resctrl(call)
        run_dir = RunDir(call.options.run_dir)
        if problem is not None:
            run_dir.complaints.append(problem)
        is_monitored = _act(call, kernel, run_dir)
    except BaseException as error:  # noqa: BLE001  as in run_stage
        from hook import report

        return report.report(call, run_dir, error)
    if call.complaints or run_dir.complaints:
        from hook import report

        report.complain(call, run_dir, is_monitored=is_monitored)
    run_dir.count_run(call.stage + ("-monitored" if is_monitored else "-done"))
    return 0


def _act(call: Call, kernel: resctrl.Resctrl, run_dir: RunDir) -> bool:
    """Run the stage; returns whether the container is monitored now. Raises HookError, OSError."""
    context, container = Context(kernel, run_dir, call.options), call.container
    if container is None:
        poststop.poststop(context, call.name)
        return False
    if call.options.containers != "all" and not identity.concerns(call.options, is_podmans=container.pod.is_podmans):
        return False
    if container.pod.is_podmans:
        from hook import conmon

        if conmon.leaves_out(call.options, container.pod):
            return False
    key = create.create_runtime(context, container)
    if key is None:
        return False  # a failure on record may be of the call that this container is for
    problem = container.pod.problem and container.problem(key)
    if problem is not None:
        from hook import report

        report.leave_traces(call, run_dir, problem, is_monitored=True)
    elif run_dir.has(Failure, call.name):
        poststop.forget_failure(run_dir, call.name, container.pid)
    return True


# --- The command line: `--x=v` or `--x v` to models.Options


def parse(arguments: list[str]) -> tuple[Options, list[str]]:
    """Parse the options; returns the valid ones, and a complaint about each other word.

    A bad option is reported and ignored: a typo in a hooks.d JSON must not stop containers.
    """
    values, others, complaints = read_words(arguments, dict(Options()))
    complaints += [f"unknown option {word.partition('=')[0][:80]!r}" for word in others]
    return validate(Options, values, complaints), complaints


def read_words(words: list[str], kinds: dict[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Parse options; returns the values by name, the words that are no option, and a complaint about each bad value.

    `kinds`: for each option, a value of its type, such as its default.
    """
    values: dict[str, Any] = {}
    others: list[str] = []
    complaints: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals, text = word.partition("=")
        name = option[2:].replace("-", "_")
        if not option.startswith("--") or name not in kinds or "_" in option:
            others.append(word)
            continue
        kind = kinds[name]
        if not equals and kind is not False:
            if not rest or rest[0].startswith("--"):  # the next option, which counts
                complaints.append(f"{option} wants a value")
                continue
            text = rest.pop(0)
        try:
            values[name] = _convert(kind, values.get(name), text)
        except ValueError as error:
            complaints.append(f"{option}: {error}")
    return values, others, complaints


def _convert(kind: object, former: Any, text: str) -> object:  # noqa: ANN401  the former value, of any kind
    """Convert `text` to the type of `kind`. A list or dict gets `text` added to its `former` value."""
    if kind is False:
        if text:
            raise ValueError("takes no value")
        return True
    if isinstance(kind, (int, float)):
        if len(text) > _LONGEST_NUMBER or text.strip(_NUMBER):
            raise ValueError(f"{text[:80]!r} is not a number")
        return type(kind)(text)
    if isinstance(kind, list):
        return [*(former or []), text]
    if isinstance(kind, dict):
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ValueError(f"{text[:80]!r} is not K=V")
        return {**(former or {}), name: value}
    return text


def validate(form: type[ModelT], values: dict[str, Any], complaints: list[str]) -> ModelT:
    """Make a model of options; each value that it refuses is left out and adds a complaint.

    ValidationError: a required option is missing.
    """
    while True:
        try:
            return form.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            if name not in values:
                raise
            complaints.append(f"--{name.replace('_', '-')}: {str(values.pop(name))[:80]!r}: {first['msg']}")
