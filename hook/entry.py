# SPDX-License-Identifier: Apache-2.0
"""The way from the command line and the OCI state on stdin to createRuntime or poststop.

Read `run_stage`, then `create.create_runtime` or `poststop.poststop`.
"""

from __future__ import annotations

from hook import formats, identity, names, resctrl, system
from hook.context import make_call, new_context
from hook.models import Failure, Options, State
from hook.store import RunDir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hook.context import Call, Context
    from hook.errors import HookError
    from hook.store import ModelT

STDIN_LIMIT = 4 << 20
STDIN_PATIENCE = 10.0
STAGES = ("hook", "createRuntime", "poststop")
_LONGEST_NUMBER = 20
# Int and float accept more (signs, 1_0, other scripts), which is a typo here.
_NUMBER = "0123456789."


def run_stage(verb: str, words: list[str]) -> int:
    """Run a stage; returns the exit status, which is 0 without `--strict`.

    No exception may fail a container.
    """
    call: Call | None = None
    state: State | None = None
    error: BaseException | None = None
    text, is_whole = b"", False
    try:
        try:
            text, is_whole = system.read_stdin(STDIN_LIMIT, STDIN_PATIENCE)
        except OSError as caught:
            error = caught
        if system.in_user_namespace():
            return 0
        try:
            # A caller that does not close stdin may have written all of it.
            if len(text) < STDIN_LIMIT or is_whole:
                state = State.model_validate(formats.loads(text.decode()))
        except BaseException as caught:  # noqa: BLE001  reported, with what is known of the container
            error = caught if is_whole else error
        given = parse(words)
        try:
            if state is not None:
                call = make_call(verb, given, state, state.annotations or {})
        except BaseException as caught:  # noqa: BLE001  as above
            error = caught
        problem: HookError | None = None
        if call is None:
            from hook import odd_state

            limits = STDIN_LIMIT, STDIN_PATIENCE
            call, problem, error = odd_state.make_call(verb, given, text, error, limits)
            if error is not None:
                from hook import report

                return report.report_failure(call, None, error, [])
        return serve_call(call, problem)
    except BaseException as caught:  # noqa: BLE001  as above
        from hook import report

        return report.report_escaped(caught, verb, words, parse)


def serve_call(call: Call, problem: HookError | None = None) -> int:
    """Act, report, count; returns the exit status.

    `problem` is a defect of the state, to report after the act.
    """
    problems = [problem] if problem is not None else []
    run_dir: RunDir | None = None
    try:
        if call.container is not None and call.container.pod.is_podmans:
            from hook import conmon

            conmon.name_container(call.container)  # first: each report says the name
        kernel = resctrl.Resctrl(call.options.resctrl_root)
        run_dir = RunDir(call.options.run_dir, problems)
        is_monitored = _act(call, new_context(kernel, run_dir, call.options))
    except BaseException as error:  # noqa: BLE001  as in run_stage
        from hook import report

        return report.report_failure(call, run_dir, error, problems)
    if call.complaints or problems:
        from hook import report

        report.report_problems(call, run_dir, problems, is_monitored=is_monitored)
    run_dir.count_run(call.stage + ("-monitored" if is_monitored else "-done"))
    return 0


def _act(call: Call, context: Context) -> bool:
    """Run the stage; returns whether the container is monitored now. Raises HookError, OSError."""
    container = call.container
    if container is None:
        from hook import poststop

        poststop.poststop(context, call.name)
        return False
    from hook import create

    if not names.concerns(call.options.containers, is_podmans=container.pod.is_podmans):
        return False
    if container.pod.is_podmans:
        from hook import conmon

        if conmon.leaves_out(call.options, container.pod):
            return False
    key = create.create_runtime(context, container)
    if key is None:
        return False  # a failure on record may be of the call that this container is for
    problem = container.pod.problem and identity.find_problem(container, key)
    if problem is not None:
        from hook import report

        report.write_traces(call, context.run, problem, is_monitored=True)
    elif context.run.has(Failure, call.name):
        from hook import unmonitored

        unmonitored.forget_failure(context, call.name, container)
    return True


# --- The command line: `--x=v` or `--x v` to models.Options


def parse(arguments: list[str]) -> tuple[Options, list[str]]:
    """Parse the options; returns the valid ones, and a complaint about each other word.

    A bad option is reported and ignored: a typo in a hooks.d JSON must not stop containers.
    """
    kinds = dict(Options())
    values: dict[str, Any] = {}
    complaints: list[str] = []
    rest = list(arguments)
    while rest:
        option, equals, text = rest.pop(0).partition("=")
        name = option[2:].replace("-", "_")
        if not option.startswith("--") or name not in kinds or "_" in option:
            complaints.append(f"unknown option {option[:80]!r}")
            continue
        kind = kinds[name]
        if not equals and kind is not False:
            if not rest or rest[0].startswith("--"):  # the next option, which counts
                complaints.append(f"{option} wants a value")
                continue
            text = rest.pop(0)
        try:
            values[name] = convert(kind, values.get(name), text)
        except ValueError as error:
            complaints.append(f"{option}: {error}")
    return validate(Options, values, complaints), complaints


def convert(kind: object, former: Any, text: str) -> object:  # noqa: ANN401  the former value, of any kind
    """Convert `text` to the type of `kind`.

    A list or dict gets `text` added to its `former` value.
    """
    if kind is False:
        if text:
            raise ValueError("takes no value")
        return True
    if isinstance(kind, (int, float)):
        try:
            if len(text) <= _LONGEST_NUMBER and not text.strip(_NUMBER):
                return type(kind)(text)
        except ValueError:  # 1.5 for an int, 1.2.3
            pass
        raise ValueError(
            f"{text[:80]!r} is not a {'whole ' if isinstance(kind, int) else ''}number"
        )
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
        except ValueError as error:
            refused: Any = error  # a ValidationError
            first = refused.errors()[0]
            name = str(first["loc"][0])
            if name not in values:
                raise
            problem = first["msg"].removeprefix("Value error, ")  # pydantic's words
            complaints.append(
                f"--{name.replace('_', '-')}: {str(values.pop(name))[:80]!r}: {problem}"
            )
