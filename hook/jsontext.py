"""JSON text to objects and back, without `json`, whose import costs as much as the rest of the hook.

`_json` holds the C halves of that module in CPython; where it is missing, `json` itself does the work.
"""

from __future__ import annotations

import sys

try:
    import _json

    _quoted = _json.encode_basestring_ascii
except ImportError:  # another Python than CPython
    from json.encoder import encode_basestring_ascii as _quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WHITE = " \t\n\r"
_LONGEST_NUMBER = 25  # more characters than any number that a runtime, the kernel or we write


def _bounded(text: str) -> str:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"not JSON of ours: a number of {len(text)} characters")
    return text


def _integer(text: str) -> int:
    return int(_bounded(text))


def _fraction(text: str) -> float:
    return float(_bounded(text))


def _constant(text: str) -> object:
    raise ValueError(f"not JSON: {text}")


# What the C scanner asks of its context (json.decoder.JSONDecoder): RFC 8259, no number of absurd length. A namespace
# of Python's own, for a class takes as long to make as ten functions to load.
_RULES: Any = type(sys.implementation)(  # type: ignore[call-arg]
    strict=True,
    object_hook=None,
    object_pairs_hook=None,
    parse_int=_integer,
    parse_float=_fraction,
    parse_constant=_constant,
)


def _scan(text: str, start: int) -> tuple[object, int]:
    """The value that begins at `start`, and where it ends; StopIteration where none does."""
    try:
        scanner = _json.make_scanner(_RULES)
    except NameError:
        from json import JSONDecoder  # noqa: PLC0415  the fallback

        return JSONDecoder(parse_int=_integer, parse_float=_fraction, parse_constant=_constant).raw_decode(text, start)
    try:
        found: tuple[object, int] = scanner(text, start)
    except SystemError:
        # The C scanner raises json.decoder.JSONDecodeError: in 3.10 and 3.11 only where that module is loaded already.
        import json.decoder  # noqa: F401, PLC0415

        found = scanner(text, start)
    return found


def loads(text: str) -> Any:  # noqa: ANN401  that is what JSON is
    """The object that a JSON text stands for; ValueError (of one line) for everything else."""
    start = len(text) - len(text.lstrip(_WHITE))
    try:
        value, end = _scan(text, start)
    except StopIteration as stop:
        raise ValueError(f"not JSON: no value at character {stop.value}") from None
    except RecursionError:
        raise ValueError("not JSON of ours: nested too deeply") from None
    if text[end:].strip(_WHITE):
        raise ValueError(f"not JSON: more than one value, at character {end}")
    return value


def dumps(value: object) -> str:
    """The JSON text of dicts, lists, texts, numbers, booleans and None; ASCII, one line, in the given order."""
    if isinstance(value, str):
        return _quoted(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join([f"{_quoted(name)}: {dumps(item)}" for name, item in value.items()]) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(dumps, value)) + "]"
    raise TypeError(f"{type(value).__name__} has no JSON form")
