"""The models of hook/models.py in plain Python, for where pydantic cannot be: this takes their place in the .pyz.

Made by `python3 build.py compile` from the core schemas that pydantic itself executes: change those, not this. The
tests prove both equal in what they accept, in the values, and in the place of the first error.
"""

# Straight-line code, one block a field, is what makes it fast; the slots are in the order of the fields.
# ruff: noqa: C901, PLR0912, PLR0915, PLW2901, RUF023, SIM102

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

    class ErrorDetails(TypedDict):
        loc: tuple[int | str, ...]
        msg: str
        type: str


_ABSENT = object()  # the value of a field that is not there: no check lets it pass
_set = object.__setattr__  # models are frozen


class ValidationError(ValueError):
    """What is wrong and where: the first error in the order of the fields."""

    def __init__(self, title: str, loc: tuple[object, ...], kind: str, msg: str) -> None:
        super().__init__(title, loc, kind, msg)
        self.title = title
        self._details: ErrorDetails = {"loc": tuple(map(_place, loc)), "msg": msg, "type": kind}

    def errors(self) -> list[ErrorDetails]:
        return [self._details]

    def within(self, title: str, *loc: object) -> ValidationError:
        """The same error, seen from the model that holds the one where it was found."""
        details = self._details
        return ValidationError(title, loc + details["loc"], details["type"], details["msg"])

    def __str__(self) -> str:
        place = ".".join(map(str, self._details["loc"]))
        return ": ".join(part for part in (self.title, place, self._details["msg"]) if part)


class Model:
    """What the models share; each reads its own fields in `_read`."""

    __slots__: tuple[str, ...] = ()

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
        raise _wrong(obj, "model_type", f"Input should be a valid dictionary or instance of {name}", name)

    def model_dump(self) -> dict[str, Any]:
        return {}

    def _read(self, fields: dict[str, object]) -> None:
        pass

    def __setattr__(self, name: str, value: object) -> None:
        raise ValidationError(type(self).__name__, (name,), "frozen_instance", "Instance is frozen")

    def __delattr__(self, name: str) -> None:
        raise ValidationError(type(self).__name__, (name,), "frozen_instance", "Instance is frozen")

    def __eq__(self, other: object) -> bool:
        if self.__class__ is not other.__class__:
            return False
        return [getattr(self, name) for name in self.__slots__] == [getattr(other, name) for name in self.__slots__]

    def __hash__(self) -> int:
        return hash(tuple([getattr(self, name) for name in self.__slots__]))


# The checks in the models look for what is right at a glance; what is not comes here, where it is refused or, as a
# subclass or an integer for a float, made what it should be.


def _place(part: object) -> int | str:
    """A part of a location as pydantic gives it: an index, or text without lone surrogates."""
    if type(part) is int:
        return part
    return str(part).encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _wrong(value: object, kind: str, msg: str, title: str, *loc: object) -> ValidationError:
    if value is _ABSENT:
        return ValidationError(title, loc, "missing", "Field required")
    return ValidationError(title, loc, kind, msg)


def _none_of(value: object, expected: tuple[str, ...], title: str, *loc: object) -> ValidationError:
    if isinstance(value, str) and _place(value) != value:
        return ValidationError(title, loc, "string_unicode", "Input should be a valid string, without lone surrogates")
    *most, last = map(repr, expected)
    choice = f"{', '.join(most)} or {last}" if most else last
    return _wrong(value, "literal_error", f"Input should be {choice}", title, *loc)


def _refused(error: Exception, title: str, *loc: object) -> ValidationError:
    if isinstance(error, AssertionError):
        return ValidationError(title, loc, "assertion_error", f"Assertion failed, {error}")
    return ValidationError(title, loc, "value_error", f"Value error, {error}")


def _text(value: object, title: str, *loc: object) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    raise _wrong(value, "string_type", "Input should be a valid string", title, *loc)


def _integer(value: object, ge: int | None, le: int | None, title: str, *loc: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(value, "int_type", "Input should be a valid integer", title, *loc)
    number = int(value)
    _bounds(number, ge, le, title, loc)
    return number


def _number(value: object, ge: float | None, le: float | None, title: str, *loc: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            pass
        else:
            _bounds(number, ge, le, title, loc)
            return number
    raise _wrong(value, "float_type", "Input should be a valid number", title, *loc)


def _bounds(number: float, ge: float | None, le: float | None, title: str, loc: tuple[object, ...]) -> None:
    # Not the other way round: every comparison with NaN is false, and NaN is within no bounds.
    if le is not None and not number <= le:
        raise ValidationError(title, loc, "less_than_equal", f"Input should be less than or equal to {le}")
    if ge is not None and not number >= ge:
        raise ValidationError(title, loc, "greater_than_equal", f"Input should be greater than or equal to {ge}")


class State(Model):
    __slots__ = (
        "oci_version",
        "id",
        "status",
        "pid",
        "bundle",
        "annotations",
    )
    oci_version: str
    id: str
    status: str
    pid: int | None
    bundle: str
    annotations: dict[str, str] | None

    def _read(self, fields: dict[str, object]) -> None:
        get = fields.get
        value = get("ociVersion", _ABSENT)
        if type(value) is not str:
            value = _text(value, "State", "ociVersion")
        _set(self, "oci_version", value)
        value = get("id", _ABSENT)
        if type(value) is not str:
            value = _text(value, "State", "id")
        _set(self, "id", value)
        value = get("status", _ABSENT)
        if type(value) is not str:
            value = _text(value, "State", "status")
        _set(self, "status", value)
        value = get("pid")
        if value is not None:
            if type(value) is not int or not 0 <= value <= 2147483647:
                value = _integer(value, 0, 2147483647, "State", "pid")
        _set(self, "pid", value)
        value = get("bundle", _ABSENT)
        if type(value) is not str:
            value = _text(value, "State", "bundle")
        try:
            value = names.path(value)
        except (ValueError, AssertionError) as error:
            raise _refused(error, "State", "bundle") from error
        _set(self, "bundle", value)
        value = get("annotations")
        if value is not None:
            if not isinstance(value, dict):
                raise _wrong(value, "dict_type", "Input should be a valid dictionary", "State", "annotations")
            annotations_items: dict[object, object] = {}
            for key, item in value.items():
                name = key
                if type(name) is not str:
                    name = _text(name, "State", "annotations", key, "[key]")
                if type(item) is not str:
                    item = _text(item, "State", "annotations", key)
                annotations_items[name] = item
            value = annotations_items
        _set(self, "annotations", value)

    def model_dump(self) -> dict[str, Any]:
        return {
            "oci_version": self.oci_version,
            "id": self.id,
            "status": self.status,
            "pid": self.pid,
            "bundle": self.bundle,
            "annotations": None if self.annotations is None else dict(self.annotations),
        }


class Annotations(Model):
    __slots__ = (
        "manager",
        "pod_uid",
        "pod_namespace",
        "pod_name",
        "container_name",
        "sandbox_id",
        "cri_sandbox_uid",
        "cri_sandbox_namespace",
        "cri_sandbox_name",
        "cri_container_name",
    )
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

    def _read(self, fields: dict[str, object]) -> None:
        get = fields.get
        value = get("io.container.manager")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "Annotations", "io.container.manager")
        _set(self, "manager", value)
        value = get("io.kubernetes.pod.uid")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "Annotations", "io.kubernetes.pod.uid")
        _set(self, "pod_uid", value)
        value = get("io.kubernetes.pod.namespace")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "Annotations", "io.kubernetes.pod.namespace")
        _set(self, "pod_namespace", value)
        value = get("io.kubernetes.pod.name")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "Annotations", "io.kubernetes.pod.name")
        _set(self, "pod_name", value)
        value = get("io.kubernetes.container.name")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "Annotations", "io.kubernetes.container.name")
        _set(self, "container_name", value)
        value = get("io.kubernetes.cri-o.SandboxID")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "Annotations", "io.kubernetes.cri-o.SandboxID")
        _set(self, "sandbox_id", value)
        value = get("io.kubernetes.cri.sandbox-uid")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "Annotations", "io.kubernetes.cri.sandbox-uid")
        _set(self, "cri_sandbox_uid", value)
        value = get("io.kubernetes.cri.sandbox-namespace")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "Annotations", "io.kubernetes.cri.sandbox-namespace")
        _set(self, "cri_sandbox_namespace", value)
        value = get("io.kubernetes.cri.sandbox-name")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "Annotations", "io.kubernetes.cri.sandbox-name")
        _set(self, "cri_sandbox_name", value)
        value = get("io.kubernetes.cri.container-name")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "Annotations", "io.kubernetes.cri.container-name")
        _set(self, "cri_container_name", value)

    def model_dump(self) -> dict[str, Any]:
        return {
            "manager": self.manager,
            "pod_uid": self.pod_uid,
            "pod_namespace": self.pod_namespace,
            "pod_name": self.pod_name,
            "container_name": self.container_name,
            "sandbox_id": self.sandbox_id,
            "cri_sandbox_uid": self.cri_sandbox_uid,
            "cri_sandbox_namespace": self.cri_sandbox_namespace,
            "cri_sandbox_name": self.cri_sandbox_name,
            "cri_container_name": self.cri_container_name,
        }


class IntelRdt(Model):
    __slots__ = ("clos_id",)
    clos_id: str | None

    def _read(self, fields: dict[str, object]) -> None:
        get = fields.get
        value = get("closID")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "IntelRdt", "closID")
        _set(self, "clos_id", value)

    def model_dump(self) -> dict[str, Any]:
        return {
            "clos_id": self.clos_id,
        }


class Linux(Model):
    __slots__ = ("intel_rdt",)
    intel_rdt: IntelRdt | None

    def _read(self, fields: dict[str, object]) -> None:
        get = fields.get
        value = get("intelRdt")
        if value is not None:
            try:
                value = IntelRdt.model_validate(value)
            except ValidationError as error:
                raise error.within("Linux", "intelRdt") from None
        _set(self, "intel_rdt", value)

    def model_dump(self) -> dict[str, Any]:
        return {
            "intel_rdt": None if self.intel_rdt is None else self.intel_rdt.model_dump(),
        }


class Config(Model):
    __slots__ = (
        "linux",
        "annotations",
    )
    linux: Linux | None
    annotations: dict[str, str] | None

    def _read(self, fields: dict[str, object]) -> None:
        get = fields.get
        value = get("linux")
        if value is not None:
            try:
                value = Linux.model_validate(value)
            except ValidationError as error:
                raise error.within("Config", "linux") from None
        _set(self, "linux", value)
        value = get("annotations")
        if value is not None:
            if not isinstance(value, dict):
                raise _wrong(value, "dict_type", "Input should be a valid dictionary", "Config", "annotations")
            annotations_items: dict[object, object] = {}
            for key, item in value.items():
                name = key
                if type(name) is not str:
                    name = _text(name, "Config", "annotations", key, "[key]")
                if type(item) is not str:
                    item = _text(item, "Config", "annotations", key)
                annotations_items[name] = item
            value = annotations_items
        _set(self, "annotations", value)

    def model_dump(self) -> dict[str, Any]:
        return {
            "linux": None if self.linux is None else self.linux.model_dump(),
            "annotations": None if self.annotations is None else dict(self.annotations),
        }


class Options(Model):
    __slots__ = (
        "resctrl_root",
        "run_dir",
        "group_prefix",
        "key",
        "namespace",
        "annotation",
        "monitor",
        "linger",
        "snapshot_ttl",
        "lock_timeout",
        "rmid_wait",
        "strict",
    )
    resctrl_root: str
    run_dir: str
    group_prefix: str
    key: Literal["auto", "container", "sandbox"]
    namespace: list[str]
    annotation: dict[str, str]
    monitor: Literal["all", "opt-in", "opt-out"]
    linger: int
    snapshot_ttl: int
    lock_timeout: float
    rmid_wait: float
    strict: bool

    def _read(self, fields: dict[str, object]) -> None:
        get = fields.get
        value = get("resctrl_root", "/sys/fs/resctrl")
        if type(value) is not str:
            value = _text(value, "Options", "resctrl_root")
        try:
            value = names.directory(value)
        except (ValueError, AssertionError) as error:
            raise _refused(error, "Options", "resctrl_root") from error
        _set(self, "resctrl_root", value)
        value = get("run_dir", "/run/resctrl-mon-hook")
        if type(value) is not str:
            value = _text(value, "Options", "run_dir")
        try:
            value = names.directory(value)
        except (ValueError, AssertionError) as error:
            raise _refused(error, "Options", "run_dir") from error
        _set(self, "run_dir", value)
        value = get("group_prefix", "oci-")
        if type(value) is not str:
            value = _text(value, "Options", "group_prefix")
        try:
            value = names.group_prefix(value)
        except (ValueError, AssertionError) as error:
            raise _refused(error, "Options", "group_prefix") from error
        _set(self, "group_prefix", value)
        value = get("key", "auto")
        if value not in ("auto", "container", "sandbox"):
            raise _none_of(value, ("auto", "container", "sandbox"), "Options", "key")
        _set(self, "key", value)
        value = get("namespace", [])
        if not isinstance(value, list):
            raise _wrong(value, "list_type", "Input should be a valid list", "Options", "namespace")
        namespace_items: list[object] = []
        for index, item in enumerate(value):
            if type(item) is not str:
                item = _text(item, "Options", "namespace", index)
            namespace_items.append(item)
        value = namespace_items
        _set(self, "namespace", value)
        value = get("annotation", {})
        if not isinstance(value, dict):
            raise _wrong(value, "dict_type", "Input should be a valid dictionary", "Options", "annotation")
        annotation_items: dict[object, object] = {}
        for key, item in value.items():
            name = key
            if type(name) is not str:
                name = _text(name, "Options", "annotation", key, "[key]")
            if type(item) is not str:
                item = _text(item, "Options", "annotation", key)
            annotation_items[name] = item
        value = annotation_items
        _set(self, "annotation", value)
        value = get("monitor", "all")
        if value not in ("all", "opt-in", "opt-out"):
            raise _none_of(value, ("all", "opt-in", "opt-out"), "Options", "monitor")
        _set(self, "monitor", value)
        value = get("linger", 0)
        if type(value) is not int or not 0 <= value <= 86400:
            value = _integer(value, 0, 86400, "Options", "linger")
        _set(self, "linger", value)
        value = get("snapshot_ttl", 300)
        if type(value) is not int or not 0 <= value <= 604800:
            value = _integer(value, 0, 604800, "Options", "snapshot_ttl")
        _set(self, "snapshot_ttl", value)
        value = get("lock_timeout", 1.0)
        if type(value) is not float or not 0 <= value <= 60:
            value = _number(value, 0, 60, "Options", "lock_timeout")
        _set(self, "lock_timeout", value)
        value = get("rmid_wait", 1.5)
        if type(value) is not float or not 0 <= value <= 60:
            value = _number(value, 0, 60, "Options", "rmid_wait")
        _set(self, "rmid_wait", value)
        value = get("strict", False)
        if type(value) is not bool:
            raise _wrong(value, "bool_type", "Input should be a valid boolean", "Options", "strict")
        _set(self, "strict", value)

    def model_dump(self) -> dict[str, Any]:
        return {
            "resctrl_root": self.resctrl_root,
            "run_dir": self.run_dir,
            "group_prefix": self.group_prefix,
            "key": self.key,
            "namespace": list(self.namespace),
            "annotation": dict(self.annotation),
            "monitor": self.monitor,
            "linger": self.linger,
            "snapshot_ttl": self.snapshot_ttl,
            "lock_timeout": self.lock_timeout,
            "rmid_wait": self.rmid_wait,
            "strict": self.strict,
        }


class Member(Model):
    __slots__ = (
        "pid",
        "starttime",
        "group",
        "cgroup",
        "taken_from",
    )
    pid: int
    starttime: int
    group: str
    cgroup: str | None
    taken_from: str | None

    def _read(self, fields: dict[str, object]) -> None:
        get = fields.get
        value = get("pid", _ABSENT)
        if type(value) is not int or not 1 <= value <= 2147483647:
            value = _integer(value, 1, 2147483647, "Member", "pid")
        _set(self, "pid", value)
        value = get("starttime", _ABSENT)
        if type(value) is not int or not 0 <= value <= 9223372036854775807:
            value = _integer(value, 0, 9223372036854775807, "Member", "starttime")
        _set(self, "starttime", value)
        value = get("group", _ABSENT)
        if type(value) is not str:
            value = _text(value, "Member", "group")
        try:
            value = names.mon_group(value)
        except (ValueError, AssertionError) as error:
            raise _refused(error, "Member", "group") from error
        _set(self, "group", value)
        value = get("cgroup")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "Member", "cgroup")
        _set(self, "cgroup", value)
        value = get("taken_from")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "Member", "taken_from")
        _set(self, "taken_from", value)

    def model_dump(self) -> dict[str, Any]:
        return {
            "pid": self.pid,
            "starttime": self.starttime,
            "group": self.group,
            "cgroup": self.cgroup,
            "taken_from": self.taken_from,
        }


class MonGroup(Model):
    __slots__ = (
        "path",
        "ctrl_group",
        "inode",
        "begin",
        "end",
        "before",
        "last",
    )
    path: str
    ctrl_group: str
    inode: int | None
    begin: dict[str, str] | None
    end: dict[str, str] | None
    before: dict[str, str]
    last: dict[str, str] | None

    def _read(self, fields: dict[str, object]) -> None:
        get = fields.get
        value = get("path", _ABSENT)
        if type(value) is not str:
            value = _text(value, "MonGroup", "path")
        try:
            value = names.mon_group(value)
        except (ValueError, AssertionError) as error:
            raise _refused(error, "MonGroup", "path") from error
        _set(self, "path", value)
        value = get("ctrl_group", _ABSENT)
        if type(value) is not str:
            value = _text(value, "MonGroup", "ctrl_group")
        try:
            value = names.ctrl_group(value)
        except (ValueError, AssertionError) as error:
            raise _refused(error, "MonGroup", "ctrl_group") from error
        _set(self, "ctrl_group", value)
        value = get("inode")
        if value is not None:
            if type(value) is not int or not 0 <= value <= 9223372036854775807:
                value = _integer(value, 0, 9223372036854775807, "MonGroup", "inode")
        _set(self, "inode", value)
        value = get("begin")
        if value is not None:
            if not isinstance(value, dict):
                raise _wrong(value, "dict_type", "Input should be a valid dictionary", "MonGroup", "begin")
            begin_items: dict[object, object] = {}
            for key, item in value.items():
                name = key
                if type(name) is not str:
                    name = _text(name, "MonGroup", "begin", key, "[key]")
                if type(item) is not str:
                    item = _text(item, "MonGroup", "begin", key)
                begin_items[name] = item
            value = begin_items
        _set(self, "begin", value)
        value = get("end")
        if value is not None:
            if not isinstance(value, dict):
                raise _wrong(value, "dict_type", "Input should be a valid dictionary", "MonGroup", "end")
            end_items: dict[object, object] = {}
            for key, item in value.items():
                name = key
                if type(name) is not str:
                    name = _text(name, "MonGroup", "end", key, "[key]")
                if type(item) is not str:
                    item = _text(item, "MonGroup", "end", key)
                end_items[name] = item
            value = end_items
        _set(self, "end", value)
        value = get("before", {})
        if not isinstance(value, dict):
            raise _wrong(value, "dict_type", "Input should be a valid dictionary", "MonGroup", "before")
        before_items: dict[object, object] = {}
        for key, item in value.items():
            name = key
            if type(name) is not str:
                name = _text(name, "MonGroup", "before", key, "[key]")
            if type(item) is not str:
                item = _text(item, "MonGroup", "before", key)
            before_items[name] = item
        value = before_items
        _set(self, "before", value)
        value = get("last")
        if value is not None:
            if not isinstance(value, dict):
                raise _wrong(value, "dict_type", "Input should be a valid dictionary", "MonGroup", "last")
            last_items: dict[object, object] = {}
            for key, item in value.items():
                name = key
                if type(name) is not str:
                    name = _text(name, "MonGroup", "last", key, "[key]")
                if type(item) is not str:
                    item = _text(item, "MonGroup", "last", key)
                last_items[name] = item
            value = last_items
        _set(self, "last", value)

    def model_dump(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "ctrl_group": self.ctrl_group,
            "inode": self.inode,
            "begin": None if self.begin is None else dict(self.begin),
            "end": None if self.end is None else dict(self.end),
            "before": dict(self.before),
            "last": None if self.last is None else dict(self.last),
        }


class KeyState(Model):
    __slots__ = (
        "version",
        "key",
        "kind",
        "pod_namespace",
        "pod_name",
        "recovering",
        "generation",
        "created_at",
        "created_boottime",
        "completed_at",
        "completed_boottime",
        "cgroup",
        "lingering_since",
        "lingering_until",
        "groups",
        "members",
    )
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

    def _read(self, fields: dict[str, object]) -> None:
        get = fields.get
        value = get("version", 1)
        if type(value) is not int or not 1 <= value <= 1:
            value = _integer(value, 1, 1, "KeyState", "version")
        _set(self, "version", value)
        value = get("key", _ABSENT)
        if type(value) is not str:
            value = _text(value, "KeyState", "key")
        try:
            value = names.container_id(value)
        except (ValueError, AssertionError) as error:
            raise _refused(error, "KeyState", "key") from error
        _set(self, "key", value)
        value = get("kind", _ABSENT)
        if value not in ("pod", "container", "sandbox"):
            raise _none_of(value, ("pod", "container", "sandbox"), "KeyState", "kind")
        _set(self, "kind", value)
        value = get("pod_namespace")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "KeyState", "pod_namespace")
        _set(self, "pod_namespace", value)
        value = get("pod_name")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "KeyState", "pod_name")
        _set(self, "pod_name", value)
        value = get("recovering", False)
        if type(value) is not bool:
            raise _wrong(value, "bool_type", "Input should be a valid boolean", "KeyState", "recovering")
        _set(self, "recovering", value)
        value = get("generation", 0)
        if type(value) is not int or not 0 <= value <= 9223372036854775807:
            value = _integer(value, 0, 9223372036854775807, "KeyState", "generation")
        _set(self, "generation", value)
        value = get("created_at", "")
        if type(value) is not str:
            value = _text(value, "KeyState", "created_at")
        _set(self, "created_at", value)
        value = get("created_boottime")
        if value is not None:
            if type(value) is not float or not 0 <= value <= 1000000000000.0:
                value = _number(value, 0, 1000000000000.0, "KeyState", "created_boottime")
        _set(self, "created_boottime", value)
        value = get("completed_at")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "KeyState", "completed_at")
        _set(self, "completed_at", value)
        value = get("completed_boottime")
        if value is not None:
            if type(value) is not float or not 0 <= value <= 1000000000000.0:
                value = _number(value, 0, 1000000000000.0, "KeyState", "completed_boottime")
        _set(self, "completed_boottime", value)
        value = get("cgroup")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "KeyState", "cgroup")
        _set(self, "cgroup", value)
        value = get("lingering_since")
        if value is not None:
            if type(value) is not float or not 0 <= value <= 1000000000000.0:
                value = _number(value, 0, 1000000000000.0, "KeyState", "lingering_since")
        _set(self, "lingering_since", value)
        value = get("lingering_until")
        if value is not None:
            if type(value) is not float or not 0 <= value <= 1000000000000.0:
                value = _number(value, 0, 1000000000000.0, "KeyState", "lingering_until")
        _set(self, "lingering_until", value)
        value = get("groups", [])
        if not isinstance(value, list):
            raise _wrong(value, "list_type", "Input should be a valid list", "KeyState", "groups")
        groups_items: list[object] = []
        for index, item in enumerate(value):
            try:
                item = MonGroup.model_validate(item)
            except ValidationError as error:
                raise error.within("KeyState", "groups", index) from None
            groups_items.append(item)
        value = groups_items
        _set(self, "groups", value)
        value = get("members", {})
        if not isinstance(value, dict):
            raise _wrong(value, "dict_type", "Input should be a valid dictionary", "KeyState", "members")
        members_items: dict[object, object] = {}
        for key, item in value.items():
            name = key
            if type(name) is not str:
                name = _text(name, "KeyState", "members", key, "[key]")
            try:
                item = Member.model_validate(item)
            except ValidationError as error:
                raise error.within("KeyState", "members", key) from None
            members_items[name] = item
        value = members_items
        _set(self, "members", value)

    def model_dump(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "key": self.key,
            "kind": self.kind,
            "pod_namespace": self.pod_namespace,
            "pod_name": self.pod_name,
            "recovering": self.recovering,
            "generation": self.generation,
            "created_at": self.created_at,
            "created_boottime": self.created_boottime,
            "completed_at": self.completed_at,
            "completed_boottime": self.completed_boottime,
            "cgroup": self.cgroup,
            "lingering_since": self.lingering_since,
            "lingering_until": self.lingering_until,
            "groups": [item.model_dump() for item in self.groups],
            "members": {key: item.model_dump() for key, item in self.members.items()},
        }


class Index(Model):
    __slots__ = (
        "version",
        "key",
    )
    version: int
    key: str

    def _read(self, fields: dict[str, object]) -> None:
        get = fields.get
        value = get("version", 1)
        if type(value) is not int or not 1 <= value <= 1:
            value = _integer(value, 1, 1, "Index", "version")
        _set(self, "version", value)
        value = get("key", _ABSENT)
        if type(value) is not str:
            value = _text(value, "Index", "key")
        try:
            value = names.container_id(value)
        except (ValueError, AssertionError) as error:
            raise _refused(error, "Index", "key") from error
        _set(self, "key", value)

    def model_dump(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "key": self.key,
        }


class Failure(Model):
    __slots__ = (
        "version",
        "container",
        "stage",
        "reason",
        "problem",
        "tried",
        "kernel",
        "hint",
        "monitored",
        "time",
        "bundle",
        "pid",
        "starttime",
        "key",
        "kind",
    )
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

    def _read(self, fields: dict[str, object]) -> None:
        get = fields.get
        value = get("version", 1)
        if type(value) is not int or not 1 <= value <= 1:
            value = _integer(value, 1, 1, "Failure", "version")
        _set(self, "version", value)
        value = get("container", _ABSENT)
        if type(value) is not str:
            value = _text(value, "Failure", "container")
        _set(self, "container", value)
        value = get("stage", _ABSENT)
        if type(value) is not str:
            value = _text(value, "Failure", "stage")
        _set(self, "stage", value)
        value = get("reason", _ABSENT)
        if type(value) is not str:
            value = _text(value, "Failure", "reason")
        _set(self, "reason", value)
        value = get("problem", _ABSENT)
        if type(value) is not str:
            value = _text(value, "Failure", "problem")
        _set(self, "problem", value)
        value = get("tried", "")
        if type(value) is not str:
            value = _text(value, "Failure", "tried")
        _set(self, "tried", value)
        value = get("kernel", "")
        if type(value) is not str:
            value = _text(value, "Failure", "kernel")
        _set(self, "kernel", value)
        value = get("hint", "")
        if type(value) is not str:
            value = _text(value, "Failure", "hint")
        _set(self, "hint", value)
        value = get("monitored", False)
        if type(value) is not bool:
            raise _wrong(value, "bool_type", "Input should be a valid boolean", "Failure", "monitored")
        _set(self, "monitored", value)
        value = get("time", "")
        if type(value) is not str:
            value = _text(value, "Failure", "time")
        _set(self, "time", value)
        value = get("bundle")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "Failure", "bundle")
        _set(self, "bundle", value)
        value = get("pid")
        if value is not None:
            if type(value) is not int or not 1 <= value <= 2147483647:
                value = _integer(value, 1, 2147483647, "Failure", "pid")
        _set(self, "pid", value)
        value = get("starttime")
        if value is not None:
            if type(value) is not int or not 0 <= value <= 9223372036854775807:
                value = _integer(value, 0, 9223372036854775807, "Failure", "starttime")
        _set(self, "starttime", value)
        value = get("key")
        if value is not None:
            if type(value) is not str:
                value = _text(value, "Failure", "key")
            try:
                value = names.container_id(value)
            except (ValueError, AssertionError) as error:
                raise _refused(error, "Failure", "key") from error
        _set(self, "key", value)
        value = get("kind")
        if value is not None:
            if value not in ("pod", "container", "sandbox"):
                raise _none_of(value, ("pod", "container", "sandbox"), "Failure", "kind")
        _set(self, "kind", value)

    def model_dump(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "container": self.container,
            "stage": self.stage,
            "reason": self.reason,
            "problem": self.problem,
            "tried": self.tried,
            "kernel": self.kernel,
            "hint": self.hint,
            "monitored": self.monitored,
            "time": self.time,
            "bundle": self.bundle,
            "pid": self.pid,
            "starttime": self.starttime,
            "key": self.key,
            "kind": self.kind,
        }
