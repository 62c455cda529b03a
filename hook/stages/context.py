# SPDX-License-Identifier: Apache-2.0
"""What one invocation works with: the options of its command line, the kernel's groups, and our records."""

from __future__ import annotations

from hook.base.models import Options, ValidationError
from hook.state.consumer_view import View
from hook.state.rundir import RunDir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hook.base.models import KeyState
    from hook.base.resctrl import Resctrl
    from hook.state.rundir import LockedKey

_LONGEST_NUMBER = 20
_NUMBER = "0123456789."  # what int and float take besides (signs, 1_0, other scripts) is a typo here


class Context:
    """The kernel's groups, our records, and the administrator's options. `freed` counts the RMIDs given back.

    `late_cpu`: by key, CPU seconds that tasks had used before they were moved in; reconcile_record saves them.
    `longest_linger`: the most seconds for which a key may linger, whatever its record says; None: no such limit.
    """

    def __init__(self, resctrl: Resctrl, run: RunDir, options: Options, *, longest_linger: int | None = None) -> None:
        self.resctrl = resctrl
        self.run = run
        self.options = options
        self.longest_linger = longest_linger
        self.freed = 0
        self.late_cpu: dict[str, float] = {}
        self.view = View(run, resctrl.root)

    def remove(self, path: str) -> None:
        """Remove a mon_group, and note that its RMID comes back. HookError as from resctrl."""
        if self.resctrl.remove(path):
            self.freed += 1
            self.run.note_freed()

    def show(self, state: KeyState) -> None:
        """Bring what consumers see of a key up to date. A full /run is reported, and costs no more than that."""
        try:
            if not self.view.is_current(state):
                self.view.show(state)
        except OSError as error:
            self.complain(f"could not update the published counters of key {state.key}", error)

    def forget(self, locked: LockedKey) -> None:
        """Leave no trace of a key whose groups are gone."""
        if locked.state is not None and locked.state.generation:
            self.view.remove(locked.state.key)
        locked.clear()

    def complain(self, problem: str, error: OSError) -> None:
        """Report later what failed and stopped nothing."""
        from hook.base.explain import refused

        self.run.complaints.append(refused(problem, error))


def open_run_dir(options: Options) -> RunDir:
    """Open the run directory. HookError `io`."""
    try:
        return RunDir(options.run_dir)
    except OSError as error:
        from hook.base.explain import refused

        raise refused("cannot create or open the run directory", error) from error


# --- The command line: `--x=v` or `--x v` to models.Options


def parse(arguments: list[str]) -> tuple[Options, list[str]]:
    """Read the options; returns those that are right, and a complaint about each one that is not.

    A wrong option is reported and ignored: a typo in a hooks.d JSON must not stop containers. What kind of value an
    option takes is what kind its default has: the model is the only table of them.
    """
    defaults = dict(Options())
    values: dict[str, Any] = {}
    complaints: list[str] = []
    rest = list(arguments)
    while rest:
        option, equals, text = rest.pop(0).partition("=")
        name = option[2:].replace("-", "_")
        if not option.startswith("--") or name not in defaults or "_" in option:
            complaints.append(f"unknown option {option[:80]!r}")
            continue
        default = defaults[name]
        if not equals and default is not False:
            if not rest:
                complaints.append(f"{option} wants a value")
                continue
            text = rest.pop(0)
        try:
            values[name] = _convert(default, values.get(name), text)
        except ValueError as error:
            complaints.append(f"{option}: {error}")
    return _validate(values, complaints), complaints


def _convert(default: object, former: Any, text: str) -> object:  # noqa: ANN401  the former value, of any kind
    """Convert `text` to the kind of value that the default is; lists and dicts grow with each use of their option."""
    if default is False:
        if text:
            raise ValueError("takes no value")
        return True
    if isinstance(default, (int, float)):
        if len(text) > _LONGEST_NUMBER or text.strip(_NUMBER):
            raise ValueError(f"{text[:80]!r} is not a number of seconds")
        return type(default)(text)
    if isinstance(default, list):
        return [*(former or []), text]
    if isinstance(default, dict):
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ValueError(f"{text[:80]!r} is not K=V")
        return {**(former or {}), name: value}
    return text


def _validate(values: dict[str, Any], complaints: list[str]) -> Options:
    """Make the options, less those that the model refuses, each of which adds a complaint."""
    while True:
        try:
            return Options.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            complaints.append(f"--{name.replace('_', '-')}: {str(values.pop(name))[:80]!r}: {first['msg']}")
