"""The hook's command line: `--x=v` or `--x v` to models.Options.

An option that is wrong is reported and ignored: a typo in a hooks.d JSON must not stop containers.
"""

from __future__ import annotations

from hook.base.models import Options, ValidationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LONGEST_NUMBER = 20
_NUMBER = "0123456789."  # what int and float take besides (signs, 1_0, other scripts) is a typo here


def parse(arguments: list[str]) -> tuple[Options, list[str]]:
    """The options that are right, and a complaint about each one that is not.

    What kind of value an option takes is what kind its default has: the model is the only table of them.
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
            values[name] = _value(default, values.get(name), text)
        except ValueError as error:
            complaints.append(f"{option}: {error}")
    return _validated(values, complaints), complaints


def _value(default: object, former: Any, text: str) -> object:  # noqa: ANN401  the former value, of any kind
    """`text` as the kind of value that the default is; lists and dicts grow with each use of their option."""
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


def _validated(values: dict[str, Any], complaints: list[str]) -> Options:
    """The options, less those that the model refuses, each of which adds a complaint."""
    while True:
        try:
            return Options.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            complaints.append(f"--{name.replace('_', '-')}: {str(values.pop(name))[:80]!r}: {first['msg']}")
