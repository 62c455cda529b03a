"""The models of hook/models.py in plain Python, for where pydantic cannot be: this takes their place in the .pyz.

Made by `python3 build.py compile` from the core schemas that pydantic itself executes: change those, not this. The
tests prove both equal in what they accept, in the values, and in the place of the first error.
"""

from __future__ import annotations

from hook import names

__all__ = [
    "Annotations",
    "Config",
    "Failure",
    "Index",
    "IntelRdt",
    "KeyState",
    "Linux",
    "Member",
    "Model",
    "MonGroup",
    "Options",
    "State",
    "ValidationError",
]

TYPE_CHECKING = False  # typing's, without importing it
if TYPE_CHECKING:
    from typing import Any, Literal, TypedDict, TypeVar

    ModelT = TypeVar("ModelT", bound="Model")
    Kind = Literal["pod", "container", "sandbox"]
    Check = tuple[Any, ...]
    Fields = tuple[tuple[str, tuple[str], object, Check], ...]
    Place = tuple[object, ...]

    class ErrorDetails(TypedDict):
        loc: tuple[int | str, ...]
        msg: str
        type: str


_ABSENT = object()  # the value of a field that is not there: no check lets it pass


class ValidationError(ValueError):
    """What is wrong and where: the first error in the order of the fields."""

    def __init__(self, title: str, place: Place, kind: str, msg: str) -> None:
        super().__init__(title, place, kind, msg)
        self.title = title
        self._details: ErrorDetails = {"loc": tuple(map(_part, place)), "msg": msg, "type": kind}

    def errors(self) -> list[ErrorDetails]:
        return [self._details]

    def within(self, title: str, place: Place) -> ValidationError:
        """The same error, seen from the model that holds the one where it was found."""
        details = self._details
        return ValidationError(title, place + details["loc"], details["type"], details["msg"])

    def __str__(self) -> str:
        place = ".".join(map(str, self._details["loc"]))
        return ": ".join(part for part in (self.title, place, self._details["msg"]) if part)


class Model:
    """What the models share. `_fields`: the name, the place in the input, the default and the check of each field.

    A check is a function of those below, and what it goes by; it gets itself, a value, and what an error is to name.
    """

    _fields: Fields = ()

    def __init__(self, /, **fields: object) -> None:
        self._read(fields)

    @classmethod
    def model_validate(cls: type[ModelT], obj: object) -> ModelT:
        if isinstance(obj, dict):
            self = cls.__new__(cls)
            self._read(obj)
            return self
        if isinstance(obj, cls):
            return obj
        name = cls.__name__
        raise _wrong(obj, "model_type", f"Input should be a valid dictionary or instance of {name}", name, ())

    def model_dump(self) -> dict[str, Any]:
        return {name: _plain(value) for name, value in self.__dict__.items()}

    def _read(self, fields: dict[str, object]) -> None:
        get, own, title = fields.get, self.__dict__, type(self).__name__
        for name, place, default, check in self._fields:
            own[name] = check[0](check, get(place[0], default), title, place)

    def __setattr__(self, name: str, value: object) -> None:
        raise ValidationError(type(self).__name__, (name,), "frozen_instance", "Instance is frozen")

    def __delattr__(self, name: str) -> None:
        raise ValidationError(type(self).__name__, (name,), "frozen_instance", "Instance is frozen")

    def __eq__(self, other: object) -> bool:
        return self.__class__ is other.__class__ and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.model_dump() if isinstance(value, Model) else value


# The checks. What is not right at a glance is refused or, as a subclass or an integer for a float, made what it should
# be. A check makes lists and dicts anew, so that a default is never shared.


def _str(_check: Check, value: object, title: str, place: Place) -> str:
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    raise _wrong(value, "string_type", "Input should be a valid string", title, place)


def _bool(_check: Check, value: object, title: str, place: Place) -> bool:
    if type(value) is bool:
        return value
    raise _wrong(value, "bool_type", "Input should be a valid boolean", title, place)


def _int(check: Check, value: object, title: str, place: Place) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(value, "int_type", "Input should be a valid integer", title, place)
    number = int(value)
    _bounds(number, check, title, place)
    return number


def _float(check: Check, value: object, title: str, place: Place) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            pass
        else:
            _bounds(number, check, title, place)
            return number
    raise _wrong(value, "float_type", "Input should be a valid number", title, place)


def _bounds(number: float, check: Check, title: str, place: Place) -> None:
    _, ge, le = check
    # Not the other way round: every comparison with NaN is false, and NaN is within no bounds.
    if le is not None and not number <= le:
        raise ValidationError(title, place, "less_than_equal", f"Input should be less than or equal to {le}")
    if ge is not None and not number >= ge:
        raise ValidationError(title, place, "greater_than_equal", f"Input should be greater than or equal to {ge}")


def _literal(check: Check, value: object, title: str, place: Place) -> object:
    expected = check[1:]
    if value in expected:
        return value
    if isinstance(value, str) and _part(value) != value:
        problem = "Input should be a valid string, without lone surrogates"
        raise ValidationError(title, place, "string_unicode", problem)
    *most, last = map(repr, expected)
    choice = f"{', '.join(most)} or {last}" if most else last
    raise _wrong(value, "literal_error", f"Input should be {choice}", title, place)


def _nullable(check: Check, value: object, title: str, place: Place) -> object:
    inner = check[1]
    return None if value is None else inner[0](inner, value, title, place)


def _named(check: Check, value: object, title: str, place: Place) -> object:
    text = _str(check, value, title, place)
    try:
        return check[1](text)
    except AssertionError as error:
        raise ValidationError(title, place, "assertion_error", f"Assertion failed, {error}") from error
    except ValueError as error:
        raise ValidationError(title, place, "value_error", f"Value error, {error}") from error


def _model(check: Check, value: object, title: str, place: Place) -> object:
    try:
        return check[1].model_validate(value)
    except ValidationError as error:
        raise error.within(title, place) from None


def _list(check: Check, value: object, title: str, place: Place) -> list[object]:
    inner = check[1]
    if isinstance(value, list):
        return [inner[0](inner, item, title, (*place, index)) for index, item in enumerate(value)]
    raise _wrong(value, "list_type", "Input should be a valid list", title, place)


def _dict(check: Check, value: object, title: str, place: Place) -> dict[object, object]:
    if not isinstance(value, dict):
        raise _wrong(value, "dict_type", "Input should be a valid dictionary", title, place)
    _, of_key, of_item = check
    found: dict[object, object] = {}
    for key, item in value.items():
        name = of_key[0](of_key, key, title, (*place, key, "[key]"))
        found[name] = of_item[0](of_item, item, title, (*place, key))
    return found


def _part(part: object) -> int | str:
    """A part of a place as pydantic gives it: an index, or text without lone surrogates."""
    if type(part) is int:
        return part
    return str(part).encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _wrong(value: object, kind: str, msg: str, title: str, place: Place) -> ValidationError:
    if value is _ABSENT:
        return ValidationError(title, place, "missing", "Field required")
    return ValidationError(title, place, kind, msg)


class State(Model):
    _fields: Fields = (
        ("oci_version", ("ociVersion",), _ABSENT, (_str,)),
        ("id", ("id",), _ABSENT, (_str,)),
        ("status", ("status",), _ABSENT, (_str,)),
        ("pid", ("pid",), None, (_nullable, (_int, 0, 2147483647))),
        ("bundle", ("bundle",), _ABSENT, (_named, names.path)),
        ("annotations", ("annotations",), None, (_nullable, (_dict, (_str,), (_str,)))),
    )


class Annotations(Model):
    _fields: Fields = (
        ("manager", ("io.container.manager",), None, (_nullable, (_str,))),
        ("pod_uid", ("io.kubernetes.pod.uid",), None, (_nullable, (_str,))),
        ("pod_namespace", ("io.kubernetes.pod.namespace",), None, (_nullable, (_str,))),
        ("pod_name", ("io.kubernetes.pod.name",), None, (_nullable, (_str,))),
        ("container_name", ("io.kubernetes.container.name",), None, (_nullable, (_str,))),
        ("sandbox_id", ("io.kubernetes.cri-o.SandboxID",), None, (_nullable, (_str,))),
        ("cri_sandbox_uid", ("io.kubernetes.cri.sandbox-uid",), None, (_nullable, (_str,))),
        ("cri_sandbox_namespace", ("io.kubernetes.cri.sandbox-namespace",), None, (_nullable, (_str,))),
        ("cri_sandbox_name", ("io.kubernetes.cri.sandbox-name",), None, (_nullable, (_str,))),
        ("cri_container_name", ("io.kubernetes.cri.container-name",), None, (_nullable, (_str,))),
    )


class IntelRdt(Model):
    _fields: Fields = (("clos_id", ("closID",), None, (_nullable, (_str,))),)


class Linux(Model):
    _fields: Fields = (("intel_rdt", ("intelRdt",), None, (_nullable, (_model, IntelRdt))),)


class Config(Model):
    _fields: Fields = (
        ("linux", ("linux",), None, (_nullable, (_model, Linux))),
        ("annotations", ("annotations",), None, (_nullable, (_dict, (_str,), (_str,)))),
    )


class Options(Model):
    _fields: Fields = (
        ("resctrl_root", ("resctrl_root",), "/sys/fs/resctrl", (_named, names.directory)),
        ("run_dir", ("run_dir",), "/run/resctrl-mon-hook", (_named, names.directory)),
        ("group_prefix", ("group_prefix",), "oci-", (_named, names.group_prefix)),
        ("key", ("key",), "auto", (_literal, "auto", "container", "sandbox")),
        ("namespace", ("namespace",), [], (_list, (_str,))),
        ("annotation", ("annotation",), {}, (_dict, (_str,), (_str,))),
        ("monitor", ("monitor",), "all", (_literal, "all", "opt-in", "opt-out")),
        ("linger", ("linger",), 0, (_int, 0, 86400)),
        ("snapshot_ttl", ("snapshot_ttl",), 300, (_int, 0, 604800)),
        ("lock_timeout", ("lock_timeout",), 1.0, (_float, 0, 60)),
        ("rmid_wait", ("rmid_wait",), 1.5, (_float, 0, 60)),
        ("strict", ("strict",), False, (_bool,)),
    )


class Member(Model):
    _fields: Fields = (
        ("pid", ("pid",), _ABSENT, (_int, 1, 2147483647)),
        ("starttime", ("starttime",), _ABSENT, (_int, 0, 9223372036854775807)),
        ("group", ("group",), _ABSENT, (_named, names.mon_group)),
        ("cgroup", ("cgroup",), None, (_nullable, (_str,))),
        ("taken_from", ("taken_from",), None, (_nullable, (_str,))),
    )


class MonGroup(Model):
    _fields: Fields = (
        ("path", ("path",), _ABSENT, (_named, names.mon_group)),
        ("ctrl_group", ("ctrl_group",), _ABSENT, (_named, names.ctrl_group)),
        ("inode", ("inode",), None, (_nullable, (_int, 0, 9223372036854775807))),
        ("begin", ("begin",), None, (_nullable, (_dict, (_str,), (_str,)))),
        ("end", ("end",), None, (_nullable, (_dict, (_str,), (_str,)))),
        ("before", ("before",), {}, (_dict, (_str,), (_str,))),
        ("last", ("last",), None, (_nullable, (_dict, (_str,), (_str,)))),
    )


class KeyState(Model):
    _fields: Fields = (
        ("version", ("version",), 1, (_int, 1, 1)),
        ("key", ("key",), _ABSENT, (_named, names.container_id)),
        ("kind", ("kind",), _ABSENT, (_literal, "pod", "container", "sandbox")),
        ("pod_namespace", ("pod_namespace",), None, (_nullable, (_str,))),
        ("pod_name", ("pod_name",), None, (_nullable, (_str,))),
        ("recovering", ("recovering",), False, (_bool,)),
        ("generation", ("generation",), 0, (_int, 0, 9223372036854775807)),
        ("created_at", ("created_at",), "", (_str,)),
        ("created_boottime", ("created_boottime",), None, (_nullable, (_float, 0, 1000000000000.0))),
        ("completed_at", ("completed_at",), None, (_nullable, (_str,))),
        ("completed_boottime", ("completed_boottime",), None, (_nullable, (_float, 0, 1000000000000.0))),
        ("cgroup", ("cgroup",), None, (_nullable, (_str,))),
        ("lingering_since", ("lingering_since",), None, (_nullable, (_float, 0, 1000000000000.0))),
        ("lingering_until", ("lingering_until",), None, (_nullable, (_float, 0, 1000000000000.0))),
        ("groups", ("groups",), [], (_list, (_model, MonGroup))),
        ("members", ("members",), {}, (_dict, (_str,), (_model, Member))),
    )


class Index(Model):
    _fields: Fields = (
        ("version", ("version",), 1, (_int, 1, 1)),
        ("key", ("key",), _ABSENT, (_named, names.container_id)),
    )


class Failure(Model):
    _fields: Fields = (
        ("version", ("version",), 1, (_int, 1, 1)),
        ("container", ("container",), _ABSENT, (_str,)),
        ("stage", ("stage",), _ABSENT, (_str,)),
        ("reason", ("reason",), _ABSENT, (_str,)),
        ("problem", ("problem",), _ABSENT, (_str,)),
        ("tried", ("tried",), "", (_str,)),
        ("kernel", ("kernel",), "", (_str,)),
        ("hint", ("hint",), "", (_str,)),
        ("monitored", ("monitored",), False, (_bool,)),
        ("time", ("time",), "", (_str,)),
        ("bundle", ("bundle",), None, (_nullable, (_str,))),
        ("pid", ("pid",), None, (_nullable, (_int, 1, 2147483647))),
        ("starttime", ("starttime",), None, (_nullable, (_int, 0, 9223372036854775807))),
        ("key", ("key",), None, (_nullable, (_named, names.container_id))),
        ("kind", ("kind",), None, (_nullable, (_literal, "pod", "container", "sandbox"))),
    )
