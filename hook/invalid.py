# SPDX-License-Identifier: Apache-2.0
"""The error of the compiled models: what is wrong with an input, and where.

Loaded with the first invalid one.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Place = tuple[object, ...]


class ValidationError(ValueError):
    """The first error in the order of the fields, with its place;
    pydantic's class of this name lists all of them.
    """

    def __init__(self, title: str, place: Place, msg: str) -> None:
        super().__init__(title, place, msg)
        self.title = title
        self._details: dict[str, Any] = {"loc": tuple(map(_part, place)), "msg": msg}

    def errors(self) -> list[dict[str, Any]]:
        return [self._details]

    def within(self, title: str, place: Place) -> ValidationError:
        """Return the same error with the place as seen from the model that holds this one."""
        details = self._details
        return ValidationError(title, place + details["loc"], details["msg"])

    def __str__(self) -> str:
        place = ".".join(map(str, self._details["loc"]))
        return ": ".join(part for part in (self.title, place, self._details["msg"]) if part)


def _part(part: object) -> int | str:
    """A part of an error's place in pydantic's form: an index, or text without lone surrogates."""
    if type(part) is int:
        return part
    return str(part).encode("utf-8", "surrogatepass").decode("utf-8", "replace")
