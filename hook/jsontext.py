# SPDX-License-Identifier: Apache-2.0
"""JSON text to objects and back, without `json`, whose import costs as much as the rest of the hook.

`_json` holds the C halves of that module in CPython; where it is missing, `json` itself does the work.
"""

from __future__ import annotations

import sys

try:
    import _json
except ImportError:  # another Python than CPython
    pass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WHITE = " \t\n\r"
_LONGEST_NUMBER = 25  # more characters than any number that a runtime, the kernel or we write


def _check_length(text: str) -> str:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"not JSON of ours: a number of {len(text)} characters")
    return text


def _constant(text: str) -> object:
    raise ValueError(f"not JSON: {text}")


_PARSERS: Any = {
    "parse_int": lambda text: int(_check_length(text)),
    "parse_float": lambda text: float(_check_length(text)),
    "parse_constant": _constant,
}
# What the C scanner asks of its context (json.decoder.JSONDecoder): RFC 8259, no number of absurd length. A namespace
# of Python's own, for a class takes as long to make as ten functions to load.
_RULES: Any = type(sys.implementation)(  # type: ignore[call-arg]
    strict=True, object_hook=None, object_pairs_hook=None, **_PARSERS
)


def scan(text: str, start: int) -> tuple[object, int]:
    """Parse the JSON value at `start`; returns it and its end. StopIteration: no value begins there."""
    try:
        scanner = _json.make_scanner(_RULES)
    except NameError:
        from json import JSONDecoder

        return JSONDecoder(**_PARSERS).raw_decode(text, start)
    try:
        found: tuple[object, int] = scanner(text, start)
    except SystemError:
        # The C scanner raises json.decoder.JSONDecodeError: in 3.10 and 3.11 only where that module is loaded already.
        import json.decoder  # noqa: F401

        found = scanner(text, start)
    return found


def loads(text: str) -> Any:  # noqa: ANN401  that is what JSON is
    """Parse a JSON text. ValueError, with one line of text: it is none."""
    start = len(text) - len(text.lstrip(_WHITE))
    try:
        value, end = scan(text, start)
    except StopIteration as stop:
        raise ValueError(f"not JSON: no value at character {stop.value}") from None
    except RecursionError:
        raise ValueError("not JSON of ours: nested too deeply") from None
    if text[end:].strip(_WHITE):
        raise ValueError(f"not JSON: more than one value, at character {end}")
    return value


def dumps(value: object) -> str:
    """The JSON text of dicts, lists, texts, numbers, booleans, None and models; ASCII, one line, in the given order."""
    try:
        # As json.JSONEncoder(default=vars, allow_nan=False) does. `vars` of a model is what its fields hold.
        encoder = _json.make_encoder(None, vars, _json.encode_basestring_ascii, None, ": ", ", ", False, False, False)
    except (NameError, AttributeError, TypeError):
        import json

        return json.dumps(value, default=vars, allow_nan=False)
    return "".join(encoder(value, 0))
