# SPDX-License-Identifier: Apache-2.0
"""Values as texts: JSON, times of day, and hashes. Nothing here reads or writes.

`_json` is the C half of `json`, whose import takes too long for the core (docs/performance.md).
"""

from __future__ import annotations

import _json
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Moment = tuple[float, float]
    """A time by both clocks: CLOCK_BOOTTIME, and Unix time."""

_PRIME = 2**64 - 59

Values: Any = type(sys.implementation)
"""What carries values by their names, and is no class of ours:
to define one takes as long as to load ten functions.

The types of the values are in a class that only type checkers see.
"""


def hash_of(data: bytes) -> str:
    """16 hex digits that name this data: what it leaves as one number when divided by a prime.

    To import a hash function takes longer, and the largest, OpenSSL's,
    is ten times as large as Python.
    """
    return f"{int.from_bytes(data, 'big') % _PRIME:016x}"


def format_utc(seconds: float) -> str:
    """Format a Unix time as RFC 3339 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


# --- JSON


_WHITE = " \t\n\r"
_LONGEST_NUMBER = 25  # more characters than any number that a runtime, the kernel or we write
_DEEPEST = 100  # more levels than in any JSON that a runtime or we write


def _convert_number(text: str) -> float:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"not JSON of ours: a number of {len(text)} characters")
    return float(text) if text.strip("-0123456789") else int(text)


def _refuse(text: str) -> object:
    raise ValueError(f"not JSON: {text}")


# c_make_scanner reads its settings (those of json.decoder.JSONDecoder) from the attributes of any
# object: RFC 8259, and no number of absurd length.
_RULES: Any = Values(
    strict=True,
    object_hook=None,
    object_pairs_hook=None,
    parse_int=_convert_number,
    parse_float=_convert_number,
    parse_constant=_refuse,
)


def scan(text: str, start: int) -> tuple[object, int]:
    """Parse the JSON value at `start`; returns it and its end.

    StopIteration: no value begins there.
    """
    try:
        try:
            found: tuple[object, int] = _json.make_scanner(_RULES)(text, start)
        except SystemError:
            # The C scanner raises json.decoder.JSONDecodeError: 3.10 and 3.11 look for that only
            # where it is loaded already, others import it.
            __import__("json.decoder")
            found = _json.make_scanner(_RULES)(text, start)
    except ImportError:  # a Python without that module, or without memory
        raise ValueError("not JSON: broken off, or a character in the wrong place") from None
    return found


def cut_deep(text: str) -> str:
    """The JSON text, or its beginning: without what is nested more than _DEEPEST levels deep.

    The C scanner takes some of the stack for each level, of which a runtime's limit may leave
    little. CPython 3.12 and 3.13 let it go on for 10,000.
    """
    if text.count("[") + text.count("{") > _DEEPEST:
        depth, parts = 0, text.replace("\\\\", "__").replace('\\"', "__").split('"')
        for number, part in enumerate(parts):
            for character in part if number % 2 == 0 else "":  # the others are texts
                depth += (character in "[{") - (character in "]}")
                if depth > _DEEPEST:
                    return text[: len('"'.join(parts[:number]))]
    return text


def loads(text: str) -> Any:  # noqa: ANN401  that is what JSON is
    """Parse a JSON text. ValueError, with one line of text: it is none."""
    if len(cut_deep(text)) < len(text):
        raise ValueError("not JSON of ours: nested too deeply")
    start = len(text) - len(text.lstrip(_WHITE))
    try:
        value, end = scan(text, start)
    except StopIteration as stop:
        raise ValueError(f"not JSON: no value at character {stop.value}") from None
    if text[end:].strip(_WHITE):
        raise ValueError(f"not JSON: more than one value, at character {end}")
    return value


def dumps(value: object) -> str:
    """The JSON text of dicts, lists, texts, numbers, booleans, None and models; ASCII,
    one line, in the given order.
    """
    # As json.JSONEncoder(default=vars, allow_nan=False) does.
    # `vars` of a model is what its fields hold.
    encoder = _json.make_encoder(
        None, vars, _json.encode_basestring_ascii, None, ": ", ", ", False, False, False
    )
    return "".join(encoder(value, 0))
