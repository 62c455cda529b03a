"""From a process that a runtime has started to one of the two use cases, and from its outcome to an exit status."""

from __future__ import annotations

import sys

from hook.base import jsontext, names, procfs, resctrl, system
from hook.base.errors import HookError, Reason, explain, known, refused, unforeseen
from hook.base.models import Annotations, State, ValidationError
from hook.stages import context, create, failures, options
from hook.state import rundir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hook.base.models import Options

_STAGES = ("hook", "createRuntime", "poststop")
_STDIN_LIMIT = 4 << 20
_STDIN_PATIENCE = 10.0


def is_stage(arguments: list[str]) -> bool:
    """Whether a runtime started this, and no person."""
    return bool(arguments) and arguments[0] in _STAGES and "--help" not in arguments


def start() -> None:
    """Run the program, by whatever way into the .pyz; does not return.

    The file's first line makes Python run `-c` code, which gives the file's path where the first argument is otherwise.
    It also makes every end that is not `leave` exit with 0: a hook that fails must not fail the container.
    """
    system.leave(main(sys.argv[2:]))


def main(arguments: list[str]) -> int:
    """Run what the command line asks for; returns the exit status: 0 on the hook path, but for `--strict`."""
    system.ensure_standard_descriptors()
    system.set_umask()
    if is_stage(arguments):
        try:
            return _Invocation(arguments[0]).run(arguments[1:])
        except BaseException as error:  # noqa: BLE001  whatever it is: no container is to fail for it
            failures.say(str(unforeseen(error)))
            return 0
    from hook.cli import main as cli  # noqa: PLC0415  for people: no container start pays for it

    return cli.main(arguments)


class _Invocation:
    """One run of the hook. It grows as the state is understood, so that a failure can say what was known by then."""

    def __init__(self, verb: str) -> None:
        self.stage = verb
        self.options: Options
        self.run_dir: rundir.RunDir | None = None
        self.container_id: str | None = None
        self.unnamed = b""
        self.unread: OSError | None = None
        self.container: create.Container | None = None

    def run(self, arguments: list[str]) -> int:
        """Read, act, report; returns the exit status."""
        try:
            text, whole = system.read_stdin(_STDIN_LIMIT, _STDIN_PATIENCE)
        except OSError as error:
            text, whole, self.unread = b"", False, error
        if procfs.in_user_namespace():
            return 0
        self.options, complaints = options.parse(arguments)
        try:
            monitored = self._act(text, whole)
        except (HookError, OSError) as error:
            self._failed(known("a file could not be read or written", error), monitored=False)
            monitored, failed = False, True
        except BaseException as error:  # noqa: BLE001  reported as a defect, with all that is known of the container
            self._failed(unforeseen(error), monitored=False)
            return 0
        else:
            failed = False
        if complaints or (self.run_dir is not None and self.run_dir.complaints):
            self._complain(complaints, monitored=monitored)
        if self.run_dir is not None:
            self.run_dir.count_run(self.stage, "failed" if failed else "monitored" if monitored else "done")
        return 1 if failed and self.options.strict and self.stage == "createRuntime" else 0

    def _act(self, text: bytes, whole: bool) -> bool:
        """Do what the state asks for; returns whether a container is monitored now."""
        kernel = resctrl.Resctrl(self.options.resctrl_root)
        self.container = self._understand(text, whole)
        if self.stage == "createRuntime" and not kernel.exists():
            self._say_once("no-resctrl", f"no {kernel.root} here: nothing is monitored on this machine")
            return False
        here = context.Node(kernel, self._open_run_dir(), self.options)
        if self.stage == "poststop":
            create.poststop(here, self.container.id)
            return False
        if not create.create_runtime(here, self.container):
            return False  # what stands on record may be the word of the call that this container is for
        if self.container.problem is None:
            here.run.remove_failure(self.container.id)
        else:
            self._failed(self.container.problem, monitored=True)
        return True

    def _understand(self, text: bytes, whole: bool) -> create.Container:
        """The container that the state on stdin is of; HookError `bad_state` if it is no state of a container."""
        state = self._state(text, whole)
        if self.container_id is None:
            raise _bad_state(f"{state.id[:80]!r} is no container ID")
        if self.stage == "createRuntime" and not state.pid:
            raise _bad_state("a container that is being created without a pid")
        annotations = state.annotations or {}
        said = Annotations.model_validate(annotations)
        return create.Container(state.id, state.pid or 0, state.bundle, annotations, said)

    def _state(self, text: bytes, whole: bool) -> State:
        self.unnamed = text
        if self.unread is not None:
            raise _bad_state(f"stdin cannot be read ({self.unread})")
        if not whole:
            raise _bad_state(f"stdin did not end within {_STDIN_LIMIT} bytes and {_STDIN_PATIENCE:.0f} seconds")
        try:
            found = jsontext.loads(text.decode())
        except ValueError as error:
            raise _bad_state(str(error)) from None
        if isinstance(found, dict):
            self._note(found)
        try:
            return State.model_validate(found)
        except ValidationError as error:
            raise _bad_state(explain(error.errors())) from None

    def _note(self, found: dict[str, Any]) -> None:
        """The stage and the container, as far as they can be told before the state is known to be right."""
        if self.stage == "hook" and isinstance(found.get("status"), str):
            self.stage = "poststop" if found["status"] == "stopped" else "createRuntime"
        if isinstance(found.get("id"), str):
            try:
                self.container_id = names.container_id(found["id"])
            except ValueError:
                self.unnamed = found["id"].encode("utf-8", "surrogatepass")

    def _record_name(self) -> str:
        """The name of the container's record: its ID, or where there is none a stable name that is safe in a path."""
        if self.container_id is not None:
            return self.container_id
        import hashlib  # noqa: PLC0415  only what is wrong pays for it

        return "bad-" + hashlib.sha256(self.unnamed).hexdigest()[:16]

    def _open_run_dir(self) -> rundir.RunDir:
        if self.run_dir is None:
            try:
                self.run_dir = rundir.RunDir(self.options.run_dir)
            except OSError as error:
                raise refused("the run directory cannot be had", error) from error
        return self.run_dir

    def _say_once(self, what: str, text: str) -> None:
        """One line per boot, as far as the run directory allows to remember it."""
        try:
            first = self._open_run_dir().first_time(what)
        except HookError:
            first = True
        if first:
            failures.say(text)

    def _failed(self, error: HookError, *, monitored: bool) -> None:
        """The three traces of a failure."""
        name = self._record_name()
        run_dir: rundir.RunDir | None = None
        try:
            run_dir = self._open_run_dir()
            to_syslog = error.reason != Reason.NOT_MOUNTED or run_dir.first_time("not-mounted")
        except Exception:  # noqa: BLE001  then there is no record, but the two other traces
            to_syslog = True
        failures.say(f"{self.stage} {name}: {error.reason}: {error}", to_syslog=to_syslog)
        if run_dir is not None and self.stage == "poststop" and error.reason == Reason.BAD_STATE:
            run_dir.remove_failure(name)  # the container goes, and its record with it
            return
        failure = failures.failure_of(error, name, self.stage, self.container, monitored=monitored)
        failures.record(run_dir, failure)

    def _complain(self, complaints: list[str], *, monitored: bool) -> None:
        """What was wrong but stopped nothing: bad options, and broken files that were dealt with."""
        name = self._record_name()
        for error in self.run_dir.complaints if self.run_dir is not None else []:
            failures.say(f"{self.stage} {name}: {error.reason}: {error}")
        if not complaints:
            return
        hint = "ignored; see the hooks.d JSON, and --help"
        usage = HookError(Reason.USAGE, "; ".join(complaints), hint=hint)
        if monitored:
            self._failed(usage, monitored=True)
        else:
            failures.say(f"{self.stage} {name}: {usage.reason}: {usage}")


def _bad_state(problem: str) -> HookError:
    hint = "a runtime that does not follow the OCI runtime specification, or the hook was started by hand"
    return HookError(Reason.BAD_STATE, problem, hint=hint)
