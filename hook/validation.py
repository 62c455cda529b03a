# SPDX-License-Identifier: Apache-2.0
"""The code of the compiled models: the records, the forms that make them,
and the checks of their fields.

hook/models_compiled.py imports this, and holds tables only. Tests prove both together equal to
pydantic: in the inputs that they accept, in the values, and in the place of the first error.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeVar

    from hook.invalid import Place

    RecordT = TypeVar("RecordT")
    Check = tuple[Any, ...]
    Fields = tuple[tuple[str, str, object, Check], ...]
    Former = tuple[tuple[str, str], ...]


MOST_NATURAL = 2**63 - 1
"""The largest count that a record may hold (models.Natural); only damage reaches it."""
ABSENT = object()  # the value of a field that is not there: no check lets it pass


class Model:
    """A record of some form.

    To make a class for each form would take as long as to load ten functions.
    """

    __slots__ = ("__dict__", "_form")

    _form: Form

    def model_dump(self) -> dict[str, Any]:
        return {name: value if type(value) in _LEAVES else _plain(value) for name, value in self}

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.__dict__.items())

    def __setattr__(self, name: str, value: object) -> None:
        raise _refuse(self._form.__name__, (name,), "Instance is frozen")

    def __delattr__(self, name: str) -> None:
        raise _refuse(self._form.__name__, (name,), "Instance is frozen")

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is Model and self._form is other._form and self.__dict__ == other.__dict__
        )

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))


def replace(record: RecordT, **fields: object) -> RecordT:
    """Return a record with some fields changed.

    Its model validates it, so that no invalid record is written.
    """
    # In the .pyz a record is of one class, and has its form.
    form = getattr(record, "_form", type(record))
    changed: RecordT = form(**{**dict(record), **fields})  # type: ignore[call-overload]
    return changed


class Form:
    """A model, in the role of a class: makes its records, and knows which records are its own.

    It has for each field: the name, the key in the input, the default, and the check. A check is a
    tuple: one of the functions below, the types whose values are taken unchanged, and the
    function's arguments. The function gets that tuple, a value, and the title and place for an
    error. `former` has keys that an earlier version wrote, each with the present one.
    """

    __slots__ = ("__name__", "_fields", "_former")

    def __init__(self, name: str, fields: Fields, former: Former = ()) -> None:
        self.__name__ = name
        self._fields = fields
        self._former = former

    def __call__(self, /, **fields: object) -> Model:
        return self._made(fields)

    def __instancecheck__(self, record: object) -> bool:
        return type(record) is Model and record._form is self

    def model_validate(self, obj: object) -> Model:
        if isinstance(obj, dict):
            return self._made(obj)
        if type(obj) is Model and obj._form is self:
            return obj
        name = self.__name__
        raise _refuse(name, (), f"Input should be a valid dictionary or instance of {name}")

    def _made(self, fields: dict[str, object]) -> Model:
        made = Model()
        _set_form(made, self)
        get, own, title, table = fields.get, made.__dict__, self.__name__, self._fields
        for former, present in self._former:
            if former in fields and present not in fields:
                table = tuple(
                    [(row[0], former if row[1] == present else row[1], *row[2:]) for row in table]
                )
        for name, place, default, check in table:
            value = get(place, default)
            if type(value) in check[1] or (value is default and type(value) in _LEAVES):
                own[name] = value
            else:
                own[name] = check[0](check, value, title, (place,))
        return made


_set_form = Model._form.__set__  # type: ignore[attr-defined]  # models are frozen
_LEAVES = frozenset((str, int, float, bool, type(None)))
STR = frozenset((str,))
NONE = frozenset((type(None),))


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {
            name: item if type(item) in _LEAVES else _plain(item) for name, item in value.items()
        }
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.model_dump() if isinstance(value, Model) else value


# The checks, for values that are not of the plain type of their field. They refuse a value
# or convert it, such as an integer for a float. They make new lists and dicts, so that
# records never share a default.


def check_str(_check: Check, value: object, title: str, place: Place) -> str:
    if type(value) is str:
        return value
    raise _wrong(value, "a valid string", title, place)


def check_bool(_check: Check, value: object, title: str, place: Place) -> bool:
    if type(value) is bool:
        return value
    raise _wrong(value, "a valid boolean", title, place)


def check_int(check: Check, value: object, title: str, place: Place) -> int:
    if type(value) is not int:
        raise _wrong(value, "a valid integer", title, place)
    _, _, least, most = check
    if least <= value <= most:
        return value
    raise _out_of_bounds(check, title, place)


def check_float(check: Check, value: object, title: str, place: Place) -> float:
    if type(value) is not int and type(value) is not float:
        raise _wrong(value, "a valid number", title, place)
    _, _, least, most = check
    if least <= value <= most:  # false also of NaN
        return float(value)
    raise _out_of_bounds(check, title, place)


def check_literal(check: Check, value: object, title: str, place: Place) -> object:
    expected = check[2:]
    if value in expected:
        return value
    *most, last = map(repr, expected)
    raise _wrong(value, f"{', '.join(most)} or {last}" if most else last, title, place)


def check_nullable(check: Check, value: object, title: str, place: Place) -> object:
    inner = check[2]
    return None if value is None else inner[0](inner, value, title, place)


def check_named(check: Check, value: object, title: str, place: Place) -> object:
    text = value if type(value) is str else check_str(check, value, title, place)
    try:
        return check[2](text)
    except ValueError as error:
        raise _refuse(title, place, f"Value error, {error}") from error


def check_model(check: Check, value: object, title: str, place: Place) -> object:
    try:
        return check[2].model_validate(value)
    except ValueError as error:
        refused: Any = error  # a ValidationError
        raise refused.within(title, place) from None


def check_list(check: Check, value: object, title: str, place: Place) -> list[object]:
    inner = check[2]
    if isinstance(value, list):
        return [inner[0](inner, item, title, (*place, index)) for index, item in enumerate(value)]
    raise _wrong(value, "a valid list", title, place)


def check_dict(check: Check, value: object, title: str, place: Place) -> dict[object, object]:
    if not isinstance(value, dict):
        raise _wrong(value, "a valid dictionary", title, place)
    _, _, of_key, of_item = check
    found: dict[object, object] = {}
    for key, item in value.items():
        name = (
            key if type(key) in of_key[1] else of_key[0](of_key, key, title, (*place, key, "[key]"))
        )
        found[name] = of_item[0](of_item, item, title, (*place, key))
    return found


def check_texts(_check: Check, value: object, title: str, place: Place) -> dict[object, object]:
    """A dict from texts to texts, the most frequent kind, checked without a check for each item."""
    if (
        type(value) is dict
        and STR.issuperset(map(type, value))
        and STR.issuperset(map(type, value.values()))
    ):
        return value.copy()
    return check_dict((check_dict, (), TEXT, TEXT), value, title, place)


TEXT = (check_str, STR)
TEXTS = (check_texts, ())
FLAG = (check_bool, frozenset((bool,)))
TEXT_OR_NONE = (check_nullable, STR | NONE, TEXT)


def _wrong(value: object, expected: str, title: str, place: Place) -> ValueError:
    return _refuse(
        title, place, "Field required" if value is ABSENT else f"Input should be {expected}"
    )


def _out_of_bounds(check: Check, title: str, place: Place) -> ValueError:
    _, _, least, most = check
    return _refuse(
        title,
        place,
        f"Input should be greater than or equal to {least}, and less than or equal to {most}",
    )


def _refuse(title: str, place: Place, msg: str) -> ValueError:
    from hook import invalid

    return invalid.ValidationError(title, place, msg)
