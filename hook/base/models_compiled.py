"""The models of hook/models.py in plain Python, for where pydantic cannot be: this takes their place in the .pyz.

Made by `python3 build.py compile` from the core schemas that pydantic itself executes: change those, not this. The
tests prove both equal in what they accept, in the values, and in the place of the first error.
"""

from __future__ import annotations

from hook.base import names

__all__ = [
    "Annotations",
    "Config",
    "Failure",
    "HookFile",
    "HookProgram",
    "HookWhen",
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
    from collections.abc import Iterator
    from typing import Any, Literal, TypedDict, TypeVar

    ModelT = TypeVar("ModelT", bound="Model")
    Check = tuple[Any, ...]
    Fields = tuple[tuple[str, str, object, frozenset[type], Check], ...]
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
    """A record of some form. A class for each of them would take as long to make as ten functions to load."""

    __slots__ = ("__dict__", "_form")

    _form: Form

    if TYPE_CHECKING:  # what a Form does, as if it were a class

        def __init__(self, /, **fields: object) -> None: ...

        @classmethod
        def model_validate(cls: type[ModelT], obj: object) -> ModelT: ...

    def model_dump(self) -> dict[str, Any]:
        return {name: value if type(value) in _LEAVES else _plain(value) for name, value in self}

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.__dict__.items())

    def __setattr__(self, name: str, value: object) -> None:
        raise ValidationError(self._form.__name__, (name,), "frozen_instance", "Instance is frozen")

    def __delattr__(self, name: str) -> None:
        raise ValidationError(self._form.__name__, (name,), "frozen_instance", "Instance is frozen")

    def __eq__(self, other: object) -> bool:
        return type(other) is Model and self._form is other._form and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))


class Form:
    """A model: what makes and knows its records, as a class would.

    For each field: its name, its place in the input, its default, the types whose values are taken as they are, and its
    check, which is a function of those below and what it goes by; it gets itself, a value, and what an error is to
    name.
    """

    __slots__ = ("__name__", "_fields")

    def __init__(self, name: str, fields: Fields) -> None:
        self.__name__ = name
        self._fields = fields

    def __call__(self, /, **fields: object) -> Model:
        return self._made(fields)

    def __instancecheck__(self, it: object) -> bool:
        return type(it) is Model and it._form is self

    def model_validate(self, obj: object) -> Model:
        if isinstance(obj, dict):
            return self._made(obj)
        if type(obj) is Model and obj._form is self:
            return obj
        name = self.__name__
        raise _wrong(obj, "model_type", f"Input should be a valid dictionary or instance of {name}", name, ())

    def _made(self, fields: dict[str, object]) -> Model:
        made = Model()
        _set_form(made, self)
        get, own, title = fields.get, made.__dict__, self.__name__
        for name, place, default, taken, check in self._fields:
            value = get(place, default)
            if type(value) in taken or (value is default and type(value) in _LEAVES):
                own[name] = value
            else:
                own[name] = check[0](check, value, title, (place,))
        return made


_set_form = Model._form.__set__  # type: ignore[attr-defined]  # models are frozen
_LEAVES = frozenset((str, int, float, bool, type(None)))
_STR, _BOOL, _NONE = frozenset((str,)), frozenset((bool,)), frozenset((type(None),))
_STR_NONE = _STR | _NONE
_NO_TYPE: frozenset[type] = frozenset()


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: item if type(item) in _LEAVES else _plain(item) for name, item in value.items()}
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
    _, ge, le = check
    if type(value) is int and ge is not None and le is not None and ge <= value <= le:
        return value
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(value, "int_type", "Input should be a valid integer", title, place)
    _bounds(int(value), check, title, place)
    return int(value)


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


def _texts(_check: Check, value: object, title: str, place: Place) -> dict[object, object]:
    """A dict of texts by texts, which most are."""
    if type(value) is dict and _STR.issuperset(map(type, value)) and _STR.issuperset(map(type, value.values())):
        return value.copy()
    return _dict((_dict, (_str,), (_str,)), value, title, place)


def _part(part: object) -> int | str:
    """A part of a place as pydantic gives it: an index, or text without lone surrogates."""
    if type(part) is int:
        return part
    return str(part).encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _wrong(value: object, kind: str, msg: str, title: str, place: Place) -> ValidationError:
    if value is _ABSENT:
        return ValidationError(title, place, "missing", "Field required")
    return ValidationError(title, place, kind, msg)


if TYPE_CHECKING:
    Kind = Literal["pod", "container", "sandbox"]

    class State(Model):
        oci_version: str
        id: str
        status: str
        pid: int | None
        bundle: str
        annotations: dict[str, str] | None

    class Annotations(Model):
        manager: str | None
        pod_uid: str | None
        pod_namespace: str | None
        pod_name: str | None
        container_name: str | None
        sandbox_id: str | None
        cri_sandbox_uid: str | None
        cri_sandbox_namespace: str | None
        cri_sandbox_name: str | None
        cri_container_name: str | None

    class IntelRdt(Model):
        clos_id: str | None

    class Linux(Model):
        intel_rdt: IntelRdt | None

    class Config(Model):
        linux: Linux | None
        annotations: dict[str, str] | None

    class Options(Model):
        resctrl_root: str
        run_dir: str
        group_prefix: str
        key: Literal["auto", "container", "sandbox"]
        containers: Literal["all", "kubernetes", "podman"]
        namespace: list[str]
        annotation: dict[str, str]
        monitor: Literal["all", "opt-in", "opt-out"]
        linger: int
        snapshot_ttl: int
        lock_timeout: float
        rmid_wait: float
        strict: bool

    class Member(Model):
        pid: int
        starttime: int
        group: str
        cgroup: str | None
        taken_from: str | None

    class MonGroup(Model):
        path: str
        ctrl_group: str
        inode: int | None
        begin: dict[str, str] | None
        end: dict[str, str] | None
        before: dict[str, str]
        last: dict[str, str] | None

    class KeyState(Model):
        version: int
        key: str
        kind: Literal["pod", "container", "sandbox"]
        pod_namespace: str | None
        pod_name: str | None
        recovering: bool
        generation: int
        created_at: str
        created_boottime: float | None
        completed_at: str | None
        completed_boottime: float | None
        cgroup: str | None
        lingering_since: float | None
        lingering_until: float | None
        groups: list[MonGroup]
        members: dict[str, Member]

    class Index(Model):
        version: int
        key: str

    class Failure(Model):
        version: int
        container: str
        stage: str
        reason: str
        problem: str
        tried: str
        kernel: str
        hint: str
        monitored: bool
        time: str
        bundle: str | None
        pid: int | None
        starttime: int | None
        key: str | None
        kind: Literal["pod", "container", "sandbox"] | None

    class HookProgram(Model):
        path: str
        args: list[str] | None
        env: list[str] | None
        timeout: int | None

    class HookWhen(Model):
        always: bool | None
        annotations: dict[str, str] | None
        commands: list[str] | None
        has_bind_mounts: bool | None

    class HookFile(Model):
        version: Literal["1.0.0"]
        hook: HookProgram
        when: HookWhen
        stages: list[str]
else:
    State = Form(
        "State",
        (
            ("oci_version", "ociVersion", _ABSENT, _STR, (_str,)),
            ("id", "id", _ABSENT, _STR, (_str,)),
            ("status", "status", _ABSENT, _STR, (_str,)),
            ("pid", "pid", None, _NONE, (_nullable, (_int, 0, 2147483647))),
            ("bundle", "bundle", _ABSENT, _NO_TYPE, (_named, names.path)),
            ("annotations", "annotations", None, _NONE, (_nullable, (_texts,))),
        ),
    )
    Annotations = Form(
        "Annotations",
        (
            ("manager", "io.container.manager", None, _STR_NONE, (_nullable, (_str,))),
            ("pod_uid", "io.kubernetes.pod.uid", None, _STR_NONE, (_nullable, (_str,))),
            ("pod_namespace", "io.kubernetes.pod.namespace", None, _STR_NONE, (_nullable, (_str,))),
            ("pod_name", "io.kubernetes.pod.name", None, _STR_NONE, (_nullable, (_str,))),
            ("container_name", "io.kubernetes.container.name", None, _STR_NONE, (_nullable, (_str,))),
            ("sandbox_id", "io.kubernetes.cri-o.SandboxID", None, _STR_NONE, (_nullable, (_str,))),
            ("cri_sandbox_uid", "io.kubernetes.cri.sandbox-uid", None, _STR_NONE, (_nullable, (_str,))),
            ("cri_sandbox_namespace", "io.kubernetes.cri.sandbox-namespace", None, _STR_NONE, (_nullable, (_str,))),
            ("cri_sandbox_name", "io.kubernetes.cri.sandbox-name", None, _STR_NONE, (_nullable, (_str,))),
            ("cri_container_name", "io.kubernetes.cri.container-name", None, _STR_NONE, (_nullable, (_str,))),
        ),
    )
    IntelRdt = Form(
        "IntelRdt",
        (("clos_id", "closID", None, _STR_NONE, (_nullable, (_str,))),),
    )
    Linux = Form(
        "Linux",
        (("intel_rdt", "intelRdt", None, _NONE, (_nullable, (_model, IntelRdt))),),
    )
    Config = Form(
        "Config",
        (
            ("linux", "linux", None, _NONE, (_nullable, (_model, Linux))),
            ("annotations", "annotations", None, _NONE, (_nullable, (_texts,))),
        ),
    )
    Options = Form(
        "Options",
        (
            ("resctrl_root", "resctrl_root", "/sys/fs/resctrl", _NO_TYPE, (_named, names.directory)),
            ("run_dir", "run_dir", "/run/resctrl-mon-hook", _NO_TYPE, (_named, names.directory)),
            ("group_prefix", "group_prefix", "oci-", _NO_TYPE, (_named, names.group_prefix)),
            ("key", "key", "auto", _NO_TYPE, (_literal, "auto", "container", "sandbox")),
            ("containers", "containers", "all", _NO_TYPE, (_literal, "all", "kubernetes", "podman")),
            ("namespace", "namespace", [], _NO_TYPE, (_list, (_str,))),
            ("annotation", "annotation", {}, _NO_TYPE, (_texts,)),
            ("monitor", "monitor", "all", _NO_TYPE, (_literal, "all", "opt-in", "opt-out")),
            ("linger", "linger", 0, _NO_TYPE, (_int, 0, 86400)),
            ("snapshot_ttl", "snapshot_ttl", 300, _NO_TYPE, (_int, 0, 604800)),
            ("lock_timeout", "lock_timeout", 1.0, _NO_TYPE, (_float, 0, 60)),
            ("rmid_wait", "rmid_wait", 1.5, _NO_TYPE, (_float, 0, 60)),
            ("strict", "strict", False, _BOOL, (_bool,)),
        ),
    )
    Member = Form(
        "Member",
        (
            ("pid", "pid", _ABSENT, _NO_TYPE, (_int, 1, 2147483647)),
            ("starttime", "starttime", _ABSENT, _NO_TYPE, (_int, 0, 9223372036854775807)),
            ("group", "group", _ABSENT, _NO_TYPE, (_named, names.mon_group)),
            ("cgroup", "cgroup", None, _STR_NONE, (_nullable, (_str,))),
            ("taken_from", "taken_from", None, _STR_NONE, (_nullable, (_str,))),
        ),
    )
    MonGroup = Form(
        "MonGroup",
        (
            ("path", "path", _ABSENT, _NO_TYPE, (_named, names.mon_group)),
            ("ctrl_group", "ctrl_group", _ABSENT, _NO_TYPE, (_named, names.ctrl_group)),
            ("inode", "inode", None, _NONE, (_nullable, (_int, 0, 9223372036854775807))),
            ("begin", "begin", None, _NONE, (_nullable, (_texts,))),
            ("end", "end", None, _NONE, (_nullable, (_texts,))),
            ("before", "before", {}, _NO_TYPE, (_texts,)),
            ("last", "last", None, _NONE, (_nullable, (_texts,))),
        ),
    )
    KeyState = Form(
        "KeyState",
        (
            ("version", "version", 1, _NO_TYPE, (_int, 1, 1)),
            ("key", "key", _ABSENT, _NO_TYPE, (_named, names.container_id)),
            ("kind", "kind", _ABSENT, _NO_TYPE, (_literal, "pod", "container", "sandbox")),
            ("pod_namespace", "pod_namespace", None, _STR_NONE, (_nullable, (_str,))),
            ("pod_name", "pod_name", None, _STR_NONE, (_nullable, (_str,))),
            ("recovering", "recovering", False, _BOOL, (_bool,)),
            ("generation", "generation", 0, _NO_TYPE, (_int, 0, 9223372036854775807)),
            ("created_at", "created_at", "", _STR, (_str,)),
            ("created_boottime", "created_boottime", None, _NONE, (_nullable, (_float, 0, 1000000000000.0))),
            ("completed_at", "completed_at", None, _STR_NONE, (_nullable, (_str,))),
            ("completed_boottime", "completed_boottime", None, _NONE, (_nullable, (_float, 0, 1000000000000.0))),
            ("cgroup", "cgroup", None, _STR_NONE, (_nullable, (_str,))),
            ("lingering_since", "lingering_since", None, _NONE, (_nullable, (_float, 0, 1000000000000.0))),
            ("lingering_until", "lingering_until", None, _NONE, (_nullable, (_float, 0, 1000000000000.0))),
            ("groups", "groups", [], _NO_TYPE, (_list, (_model, MonGroup))),
            ("members", "members", {}, _NO_TYPE, (_dict, (_str,), (_model, Member))),
        ),
    )
    Index = Form(
        "Index",
        (
            ("version", "version", 1, _NO_TYPE, (_int, 1, 1)),
            ("key", "key", _ABSENT, _NO_TYPE, (_named, names.container_id)),
        ),
    )
    Failure = Form(
        "Failure",
        (
            ("version", "version", 1, _NO_TYPE, (_int, 1, 1)),
            ("container", "container", _ABSENT, _STR, (_str,)),
            ("stage", "stage", _ABSENT, _STR, (_str,)),
            ("reason", "reason", _ABSENT, _STR, (_str,)),
            ("problem", "problem", _ABSENT, _STR, (_str,)),
            ("tried", "tried", "", _STR, (_str,)),
            ("kernel", "kernel", "", _STR, (_str,)),
            ("hint", "hint", "", _STR, (_str,)),
            ("monitored", "monitored", False, _BOOL, (_bool,)),
            ("time", "time", "", _STR, (_str,)),
            ("bundle", "bundle", None, _STR_NONE, (_nullable, (_str,))),
            ("pid", "pid", None, _NONE, (_nullable, (_int, 1, 2147483647))),
            ("starttime", "starttime", None, _NONE, (_nullable, (_int, 0, 9223372036854775807))),
            ("key", "key", None, _NONE, (_nullable, (_named, names.container_id))),
            ("kind", "kind", None, _NONE, (_nullable, (_literal, "pod", "container", "sandbox"))),
        ),
    )
    HookProgram = Form(
        "HookProgram",
        (
            ("path", "path", _ABSENT, _STR, (_str,)),
            ("args", "args", None, _NONE, (_nullable, (_list, (_str,)))),
            ("env", "env", None, _NONE, (_nullable, (_list, (_str,)))),
            ("timeout", "timeout", None, _NONE, (_nullable, (_int, None, None))),
        ),
    )
    HookWhen = Form(
        "HookWhen",
        (
            ("always", "always", None, _NONE, (_nullable, (_bool,))),
            ("annotations", "annotations", None, _NONE, (_nullable, (_texts,))),
            ("commands", "commands", None, _NONE, (_nullable, (_list, (_str,)))),
            ("has_bind_mounts", "hasBindMounts", None, _NONE, (_nullable, (_bool,))),
        ),
    )
    HookFile = Form(
        "HookFile",
        (
            ("version", "version", _ABSENT, _NO_TYPE, (_literal, "1.0.0")),
            ("hook", "hook", _ABSENT, _NO_TYPE, (_model, HookProgram)),
            ("when", "when", _ABSENT, _NO_TYPE, (_model, HookWhen)),
            ("stages", "stages", _ABSENT, _NO_TYPE, (_list, (_str,))),
        ),
    )
