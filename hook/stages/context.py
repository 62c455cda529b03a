# SPDX-License-Identifier: Apache-2.0
"""What one invocation works with: the options of its command line, the kernel's groups, and our records."""

from __future__ import annotations

from hook.base.models import Options, ValidationError
from hook.state.store import RunDir
from hook.state.view import View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from hook.base.models import KeyState, Model
    from hook.base.resctrl import Resctrl
    from hook.state.store import LockedKey

    ModelT = TypeVar("ModelT", bound=Model)

_LONGEST_NUMBER = 20
_NUMBER = "0123456789."  # what int and float take besides (signs, 1_0, other scripts) is a typo here


class Context:
    """The kernel's groups, our records, and the administrator's options. `freed` counts the RMIDs given back.

    `late_cpu`: by key, CPU seconds that tasks had used before they were moved in; Tally saves them.
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
    """Read the options; returns those that are right, and a complaint about each word that is not.

    A wrong option is reported and ignored: a typo in a hooks.d JSON must not stop containers.
    """
    values, others, complaints = read_words(arguments, dict(Options()))
    complaints += [f"unknown option {word.partition('=')[0][:80]!r}" for word in others]
    return validate(Options, values, complaints), complaints


def read_words(words: list[str], kinds: dict[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Read options; returns the values by name, the words that are no option, and a complaint about each bad value.

    `kinds`: for each option, a value of the kind that it takes, such as its default.
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
            if not rest:
                complaints.append(f"{option} wants a value")
                continue
            text = rest.pop(0)
        try:
            values[name] = _convert(kind, values.get(name), text)
        except ValueError as error:
            complaints.append(f"{option}: {error}")
    return values, others, complaints


def _convert(kind: object, former: Any, text: str) -> object:  # noqa: ANN401  the former value, of any kind
    """Convert `text` to the kind of value that `kind` is; lists and dicts grow with each use of their option."""
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
    """Make a model of options, less those that it refuses, each of which adds a complaint.

    Raises ValidationError if one is missing.
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
