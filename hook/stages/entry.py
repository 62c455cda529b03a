# SPDX-License-Identifier: Apache-2.0
"""What a runtime starts. From the command line and the OCI state on stdin to createRuntime or poststop.

Read `run`, then `create.create_runtime` or `remove.poststop`.
"""

from __future__ import annotations

import sys

from hook.base import jsontext, names, procfs, resctrl, system
from hook.base.models import Failure, State
from hook.stages import create, identity, remove
from hook.stages.context import Context, open_run_dir, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hook.base.errors import HookError
    from hook.base.models import Options
    from hook.state.store import RunDir

_STAGES = ("hook", "createRuntime", "poststop")


def start() -> None:
    """Run the program, by whatever way into the .pyz; does not return.

    The file's first line makes Python run `-c` code, which gives the file's path where the first argument is otherwise.
    It also makes every end that is not `leave` exit with 0: a hook that fails must not fail the container.
    """
    system.leave(main(sys.argv[2:]))


def main(arguments: list[str]) -> int:
    """Run the command line; returns the exit status: 0 for runtimes, but for `--strict`."""
    system.ensure_standard_descriptors()
    system.set_umask()
    if is_stage(arguments):
        try:
            return run(Call(arguments[0]), arguments[1:])
        except BaseException as error:  # noqa: BLE001  whatever it is: no container is to fail for it
            from hook.stages import failures

            return failures.survive(error)
    from hook.cli import main as cli

    return cli.main(arguments)


def is_stage(arguments: list[str]) -> bool:
    """Whether a runtime started this, and no person."""
    return bool(arguments) and arguments[0] in _STAGES and "--help" not in arguments


class Call:
    """One call of the hook. Its fields are filled in as it proceeds, so that a failure report has what is known.

    `text`: what stdin held, up to STDIN_LIMIT bytes; `is_whole`: all of it. `container_id` and `bundle`: None until
    they are valid.
    """

    STDIN_LIMIT = 4 << 20
    STDIN_PATIENCE = 10.0

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.options: Options
        self.complaints: list[str] = []
        self.text = b""
        self.is_whole = False
        self.unread: OSError | None = None
        self.container_id: str | None = None
        self.bundle: str | None = None
        self.container: identity.Container | None = None
        self.run_dir: RunDir | None = None


def run(call: Call, arguments: list[str]) -> int:
    """Read, act, count; returns the exit status."""
    try:
        call.text, call.is_whole = system.read_stdin(call.STDIN_LIMIT, call.STDIN_PATIENCE)
    except OSError as error:
        call.unread = error
    if procfs.in_user_namespace():
        return 0
    call.options, call.complaints = parse(arguments)
    try:
        is_monitored = _act(call)
    except BaseException as error:  # noqa: BLE001  reported, with all that is known of the container
        from hook.stages import failures

        return failures.report(call, error)
    if call.complaints or (call.run_dir is not None and call.run_dir.complaints):
        from hook.stages import failures

        failures.complain(call, is_monitored=is_monitored)
    if call.run_dir is not None:
        call.run_dir.count_run(f"{call.stage}-{'monitored' if is_monitored else 'done'}")
    return 0


def _act(call: Call) -> bool:
    """Do what the state asks for; returns whether a container is monitored now. HookError, OSError."""
    state = _read_state(call)
    too_large: HookError | None = None
    if call.stage == "createRuntime":  # first: a failure's record has to name the process, for reconcile to try again
        annotations: dict[str, str] | None = state.annotations or {}
        if not call.is_whole:
            from hook.stages import oversized

            annotations, too_large = oversized.find_annotations(state, call.STDIN_LIMIT)
        call.container = identity.Container(state.id, state.pid or 0, state.bundle, annotations)
    kernel = resctrl.Resctrl(call.options.resctrl_root)
    if call.stage == "createRuntime" and not kernel.exists():
        from hook.stages import failures

        failures.say_once(call, "no-resctrl", f"no {kernel.root} here: nothing is monitored on this machine")
        return False
    call.run_dir = open_run_dir(call.options)
    if too_large is not None:
        call.run_dir.complaints.append(too_large)
    context = Context(kernel, call.run_dir, call.options)
    if call.container is None:
        remove.poststop(context, state.id)
        return False
    key = create.create_runtime(context, call.container)
    if key is None:
        return False  # a failure on record may be of the call that this container is for
    problem = call.container.problem(key)
    if problem is None:
        context.run.remove(Failure, state.id)
    else:
        from hook.stages import failures

        failures.report_problem(call, problem)
    return True


def _read_state(call: Call) -> State:
    """Read the state of a container; HookError `bad_state` if it is none."""
    problem: ValueError | None = None
    if call.is_whole or len(call.text) == call.STDIN_LIMIT:
        try:
            if call.is_whole:
                found = jsontext.loads(call.text.decode())
            else:
                from hook.stages import oversized

                found = oversized.read_head(call.text.decode("utf-8", "replace"))
            if isinstance(found, dict):
                _note(call, found)
            state = State.model_validate(found)
            if call.container_id is not None and (state.pid or call.stage != "createRuntime"):
                call.bundle = state.bundle
                return state
        except ValueError as error:
            problem = error
    from hook.stages import failures

    raise failures.of_state(call, problem)


def _note(call: Call, found: dict[str, Any]) -> None:
    """Note the stage and the container, as far as they are known before the state is validated."""
    if call.stage == "hook" and isinstance(found.get("status"), str):
        call.stage = "poststop" if found["status"] == "stopped" else "createRuntime"
    if isinstance(found.get("id"), str):
        try:
            call.container_id = names.container_id(found["id"])
        except ValueError:
            call.text = found["id"].encode("utf-8", "surrogatepass")  # the unreadable state is known by it
