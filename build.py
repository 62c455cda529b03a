#!/usr/bin/env python3
"""Builds, compiles, tests and shows resctrl-mon-hook.

  python3 build.py [--python PATH] [--output FILE] [--bytecode PATH]... [--release]
                             write dist/resctrl-mon-hook.pyz, and print its SHA-256 and its size, and whose bytecode
                             it holds. --python: the interpreter that the file names in its first line (default:
                             /usr/bin/python3). --bytecode: a CPython to compile for, may be given more than once
                             (default: those at hand: python3.9 to python3.14 on PATH or in /usr/bin, and the one that
                             builds; `none`: sources alone, which run on any Python, four times slower). --release: fail
                             unless there is bytecode for each version from 3.9 to 3.14
  python3 build.py compile   make hook/models_compiled.py anew from the pydantic models in hook/models.py
  python3 build.py test ...  build, then run the tests; what follows goes to pytest
                             (`test tests/unit -k shebang`; with CI set, or `test --require fuse,podman,kernel`, a
                             skip in those tiers is a failure)
  python3 build.py demo ...  build, then show the hook at work on containers and a resctrl double
  python3 build.py bench attribution ...
                             build, then measure in a guest what share of a container's work its group is charged
  python3 build.py --help    print this

Building needs any CPython from 3.9 on and nothing else: the same sources, compiled by the same interpreters, give the
same bytes everywhere. The other verbs first make ready what they need (a .venv beside this file; Debian packages where
root allows it).
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parent
OUTPUT = Path("dist") / "resctrl-mon-hook.pyz"
MODELS = Path("hook") / "models.py"
COMPILED = Path("hook") / "models_compiled.py"


class BuildError(Exception):
    """What the build cannot do; the message is for whoever builds."""


# --- The .pyz

PYTHON = "/usr/bin/python3"
# What starts the file. The kernel passes all that follows the interpreter as one argument, so Python takes it as its
# options -I -S -c and the code; the file's own path comes next, which makes sys.argv ['-c', path, ...]. That code runs
# the file line by line: the first, which is a comment to Python, and the second, which never comes back (from one that
# was cut it does, which is an error). There is no more to the contract between the two: who began with an older file
# goes on with a newer one that took its place. The point, though: a hook that fails stops containers, and from atexit
# on, whatever goes wrong (a truncated file, a SyntaxError, no memory) prints its traceback and exits with 0. No line
# can guard itself: a file cut within its first line has no such start.
BOOT = "import sys,atexit,posix;atexit.register(posix._exit,0);f=open(sys.argv[1],'rb');[*map(exec,f)];1/0"
# The second line, of any length: it goes to the bytecode for this very Python, if the zip behind it has any, and past
# the zip's directory. To import a module as source costs half a start, whatever its size (compile() makes Python's
# whole AST module ready; exec() of a text does not), and each entry of the zip a thousandth. The places count from its
# own end: `python3 -m zipapp --python=...` puts another first line there, and a file cut short ends within a part.
SECOND_LINE = (
    "import sys,marshal;sys.path[:0]=sys.argv[1:2];"
    "p={%s}.get(getattr(sys.modules.get('_frozen_importlib_external'),'MAGIC_NUMBER',None));"
    "b=f.tell();p and(f.seek(b+p[0]),exec(marshal.loads(f.read(p[1])),{'file':f,'base':b,'place':p}));"
    "import hook.start"
)
# What the zip's own __main__.py does, for `python3 FILE.pyz`: the same.
MAIN = f"import sys\n\nsys.argv[:0] = ['-c']\n{BOOT}\n"
# Linux reads 256 bytes of a file to see what starts it, and 128 before 5.1 (BINPRM_BUF_SIZE): with the usual
# interpreter the line is short enough for both. A longer one would be cut in silence.
SHEBANG_LIMIT = 255
OLD_SHEBANG_LIMIT = 127


def shebang(python: str = PYTHON) -> bytes:
    """The first line, newline included."""
    if not python.startswith("/") or len(python.split()) != 1 or not python.isprintable():
        raise BuildError(f"--python: the kernel takes an absolute path without blanks, not {python!r}")
    line = os.fsencode(f"#!{python} -ISc{BOOT}\n")
    if len(line) > SHEBANG_LIMIT:
        raise BuildError(f"the first line has {len(line)} bytes, and the kernel reads {SHEBANG_LIMIT}")
    return line


def entries(root: Path = ROOT) -> dict[str, bytes]:
    """What the zip holds: name to content, in the order of the zip."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in (root / "hook").rglob("*.py")}
    try:
        found[str(MODELS)] = found.pop(str(COMPILED))  # the plain ones take the place of pydantic's
        del found["hook/__main__.py"]  # that is for the source tree
    except KeyError as error:
        raise BuildError(f"{error.args[0]} is missing") from error
    return dict(sorted({**found, "__main__.py": MAIN.encode()}.items()))


MINORS = range(9, 15)  # of the CPythons 3.x that the file is made for
# What the modules are loaded for: those of the hook path, what people start from there on, and what runs them.
PARTS = {"hook": ("entry",), "people": ("people", "usage"), "start": ("start",)}
LOADER = "hook/loader.py"
# What each interpreter does for the build, alone, so that nothing but its version and the text has a part in the bytes:
# the modules on its stdin become code objects. They are unmarshalled once before they are written, because the marks of
# references in the bytes depend on who else held the same string at that time.
COMPILER = """\
import base64, importlib.util, json, marshal, sys
parts = {}
for part, modules in json.load(sys.stdin).items():
    codes = {name: compile(text, path, "exec", dont_inherit=True) for name, (path, text) in modules.items()}
    codes = codes.popitem()[1] if part == "loader" else codes
    parts[part] = base64.b64encode(marshal.dumps(marshal.loads(marshal.dumps(codes)))).decode()
magic = base64.b64encode(importlib.util.MAGIC_NUMBER).decode()
version = list(sys.version_info[:3])
print(json.dumps([sys.implementation.cache_tag, magic, version, parts]))
"""


class Bytecode(NamedTuple):
    """The modules as one interpreter compiled them: what the second line runs, and the parts that that loads."""

    tag: str
    magic: bytes
    version: tuple[int, ...]
    parts: dict[str, bytes]

    def entries(self) -> dict[str, bytes]:
        """What of it the zip holds; in this order, as the second line and hook/loader.py know it."""
        return {f"bytecode/{self.tag}/{part}": code for part, code in self.parts.items()}


def compiled(contents: dict[str, bytes], interpreter: str) -> Bytecode:
    """The bytecode that an interpreter makes of the modules."""
    command = [interpreter, "-I", "-S", "-X", "utf8", "-c", COMPILER]
    text = json.dumps({"loader": {"loader": (LOADER, contents[LOADER].decode())}, **parts(contents)})
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        raise BuildError(f"{interpreter} cannot compile: {said}") from error
    tag, magic, version, codes = json.loads(done.stdout)
    found = {part: base64.b64decode(code) for part, code in codes.items()}
    return Bytecode(tag, base64.b64decode(magic), tuple(version), found)


def parts(contents: dict[str, bytes]) -> dict[str, dict[str, tuple[str, str]]]:
    """The modules of each part, by path and text, every one behind those that it imports at once (hook/loader.py)."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for part, modules in PARTS.items():
        found[part] = {} if found else {"": ("hook/__init__.py", contents["hook/__init__.py"].decode())}
        for name in modules:
            _add_module(name, contents, [*found.values()])
    return found


def _add_module(name: str, contents: dict[str, bytes], found: list[dict[str, tuple[str, str]]]) -> None:
    """Put a module into the last of these, behind what it imports and they lack."""
    path = f"hook/{name}.py"
    if path not in contents or any(name in part for part in found):
        return
    for node in ast.parse(contents[path], path).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            package, _, module = node.module.partition(".")
            for inner in [module] if module else [alias.name for alias in node.names]:
                if package == "hook":
                    _add_module(inner, contents, found)
    found[-1][name] = (path, contents[path].decode())


def all_bytecode(contents: dict[str, bytes], interpreters: Iterable[str]) -> list[Bytecode]:
    """The bytecode of the interpreters, in the order of their versions; of two of one version the first counts."""
    found: dict[str, Bytecode] = {}
    for interpreter in interpreters:
        bytecode = compiled(contents, interpreter)
        found.setdefault(bytecode.tag, bytecode)
    return sorted(found.values(), key=lambda bytecode: bytecode.version)


def at_hand() -> list[str]:
    """The interpreters that a plain build compiles by."""
    named = [shutil.which(f"python3.{minor}", path=f"{os.environ.get('PATH', '')}:/usr/bin") for minor in MINORS]
    return [path for path in named if path and _works(path)] + [sys.executable]


def _works(path: str) -> bool:
    """Whether it starts at all: what PATH offers may be a shim for a version that is not there."""
    try:
        return subprocess.run([path, "-ISc", ""], capture_output=True, check=False, timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def archive(contents: dict[str, bytes], first_line: bytes, bytecode: Sequence[Bytecode] = ()) -> bytes:
    """The first line, the second, which knows where in the file the bytecode is, and the zip."""
    held = {**contents, **{name: code for it in bytecode for name, code in it.entries().items()}}
    data, found = _zipped(held)
    places = {it.magic: tuple(number for name in it.entries() for number in found[name]) for it in bytecode}
    return first_line + _second_line(places) + data


def _second_line(places: dict[bytes, tuple[int, ...]]) -> bytes:
    return (
        SECOND_LINE % ",".join(f"{magic!r}:{place}".replace(" ", "") for magic, place in places.items())
    ).encode() + b"\n"


def _zipped(contents: dict[str, bytes]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """A zip, and where in it each entry's content is, and how long.

    Everything that zipfile would take from the machine or its version is fixed.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in sorted(contents.items()):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_STORED  # deflate would need zlib at run time, and gains nothing
            entry.create_system = 3  # Unix, whose mode bits follow
            entry.create_version = entry.extract_version = 20
            entry.external_attr = 0o100644 << 16
            file.writestr(entry, content)
        header = 30  # APPNOTE.TXT 4.3.7; the name follows, and no extra field
        places = {it.filename: (it.header_offset + header + len(it.filename), it.file_size) for it in file.infolist()}
    return buffer.getvalue(), places


def build(
    root: Path = ROOT,
    output: Path | None = None,
    python: str = PYTHON,
    bytecode: Iterable[str] = (),
    release: bool = False,
) -> Path:
    """Writes the .pyz beside its place and renames it there: whoever starts it gets the old one or the new one."""
    target = output or root / OUTPUT
    contents = entries(root)
    chosen = all_bytecode(contents, bytecode)
    lacking = [f"3.{minor}" for minor in MINORS if (3, minor) not in {it.version[:2] for it in chosen}]
    if release and lacking:
        raise BuildError(f"a release holds bytecode for every version; no interpreter of {', '.join(lacking)}")
    data = archive(contents, shebang(python), chosen)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.chmod(0o755)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    print(f"{hashlib.sha256(data).hexdigest()}  {target}  {len(data)} bytes", flush=True)
    print("bytecode:", ", ".join(".".join(map(str, it.version)) for it in chosen) or "none", flush=True)
    return target


# --- The compiler: pydantic's core schemas to plain Python
#
# It knows the node types and the keys of KNOWN, each with one meaning, and refuses the rest by name: a constraint that
# it overlooked would be a check that the hook does not make. So that the schema says all there is to say about a model,
# `_own_class` also refuses what pydantic keeps outside it (methods, properties, other settings).

KNOWN: dict[str, frozenset[str]] = {
    "bool": frozenset(),
    "default": frozenset({"default", "schema"}),
    "definition-ref": frozenset({"schema_ref"}),
    "definitions": frozenset({"definitions", "schema"}),
    "dict": frozenset({"keys_schema", "values_schema"}),
    "float": frozenset({"ge", "le"}),
    "function-after": frozenset({"function", "schema"}),
    "int": frozenset({"ge", "le"}),
    "list": frozenset({"items_schema"}),
    "literal": frozenset({"expected"}),
    "model": frozenset({"cls", "config", "custom_init", "ref", "root_model", "schema"}),
    "model-field": frozenset({"schema", "serialization_alias", "validation_alias"}),
    "model-fields": frozenset({"computed_fields", "fields", "model_name"}),
    "no-info": frozenset({"function"}),
    "nullable": frozenset({"schema"}),
    "str": frozenset(),
}
Node = dict[str, Any]  # a core schema is plain dicts
EVERYWHERE = frozenset({"type", "metadata"})  # metadata is for JSON schemas; validation never sees it
SETTINGS = {"strict": True, "frozen": True, "extra": "ignore"}
PRELUDE = '''\
"""The models of hook/models.py in plain Python, for where pydantic cannot be: this takes their place in the .pyz.

Made by `python3 build.py compile` from the core schemas that pydantic itself executes: change those, not this. The
tests prove both equal in what they accept, in the values, and in the place of the first error.
"""

from __future__ import annotations

from hook import names

__all__ = []

TYPE_CHECKING = False  # typing's, without importing it
if TYPE_CHECKING:
    from typing import Any, Literal, TypedDict, TypeVar

    ModelT = TypeVar("ModelT", bound="Model")
    # aliases
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
'''


class Refused(BuildError):
    """Something in a model that the compiler does not know."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}: not known to the compiler of the models (build.py)")


def compile_models(models: ModuleType) -> str:
    """The text of the compiled module for a module such as hook/models.py."""
    classes = _classes(models)
    exported = _block("__all__ = [", [f"{_quoted(name)}," for name in models.__all__], "]")
    prelude = PRELUDE.replace("__all__ = []", "\n".join(exported)).replace("    # aliases\n", _aliases(models))
    return "\n\n".join([prelude, *(_Compiler(models, cls).text() for cls in classes)])


def _classes(models: ModuleType) -> list[type]:
    """The models in the order of their definition; what else the module exports cannot be compiled."""
    from pydantic import BaseModel  # noqa: PLC0415  building needs no pydantic

    own = [cls for cls in vars(models).values() if isinstance(cls, type) and cls.__module__ == models.__name__]
    known = {cls.__name__ for cls in own if issubclass(cls, BaseModel)} | {"ValidationError"}
    for name in [*(cls.__name__ for cls in own), *models.__all__]:
        if name not in known:
            raise Refused(f"{models.__name__}.{name}", "something that is no model")
    _own_class(models.Model, BaseModel)
    return [cls for cls in own if cls is not models.Model]


def _aliases(models: ModuleType) -> str:
    """The named literals, which the callers' annotations use."""
    literals = {name: value for name, value in vars(models).items() if get_origin(value) is Literal}
    return "".join(f"    {name} = Literal[{', '.join(map(_quoted, get_args(it)))}]\n" for name, it in literals.items())


def _own_class(cls: type[Any], base: Any) -> None:  # noqa: ANN401  a class to derive from
    """Refuses what a model has besides its fields, since the schema would not show it."""

    # Class statements, since each version of Python leaves other names of its own in one.
    class Bare(base):  # type: ignore[misc]
        """A model without fields."""

        model_config = SETTINGS

    class Filled(base):  # type: ignore[misc]
        """A model with fields."""

        model_config = SETTINGS
        field: int

    strangers = sorted(set(vars(cls)) - set(vars(Bare)) - set(vars(Filled)))
    if strangers:
        raise Refused(f"{cls.__name__}.{strangers[0]}", "something that is no field")
    if cls.__bases__ != (base,):
        raise Refused(cls.__name__, f"a base other than {base.__name__}")
    if dict(cls.model_config) != SETTINGS:
        raise Refused(cls.__name__, f"model_config {dict(cls.model_config)!r}")


class _Compiler:
    """Compiles one model. Each node type has a method that gives the check of it, as text."""

    def __init__(self, models: ModuleType, cls: type[Any]) -> None:
        _own_class(cls, models.Model)
        self.name: str = cls.__name__
        self.models = models
        self.definitions: list[Node] = []
        self.checks: dict[str, Callable[[Node, str], str]] = {
            "bool": lambda _node, _where: "(_bool,)",
            "definition-ref": self._model,
            "dict": self._dict,
            "float": self._number,
            "function-after": self._function,
            "int": self._number,
            "list": self._list,
            "literal": self._literal,
            "model": self._model,
            "nullable": self._nullable,
            "str": lambda _node, _where: "(_str,)",
        }
        self.fields = self._fields(cls.__pydantic_core_schema__)

    def text(self) -> str:
        """The class."""
        fields = [f"{self._field(name)}," for name in self.fields]
        head = "_fields: Fields = ("
        body = _block(head, fields, ")") if len(fields) > 1 else [f"{head}{fields[0]})"]
        return "\n".join(_block(f"class {self.name}(Model):", body)) + "\n"

    def _fields(self, schema: Node) -> Node:
        if _known(schema, self.name) == "definitions":
            self.definitions = schema["definitions"]
            schema = schema["schema"]
        self._is_model(schema, self.name)
        if schema["cls"].__name__ != self.name:
            raise Refused(self.name, "a schema of another model")
        fields: Node = schema["schema"]["fields"]
        if not fields:
            raise Refused(self.name, "a model without fields")
        return fields

    def _is_model(self, schema: Node, where: str) -> None:
        """Refuses everything but a plain model, whose fields are compiled where it is defined."""
        if _known(schema, where) != "model":
            raise Refused(where, f"node type {schema['type']!r} in place of a model (one that holds itself?)")
        config = {"title": schema["cls"].__name__, "strict": True, "extra_fields_behavior": "ignore"}
        expected = {"config": config, "custom_init": False, "root_model": False}
        for key, value in expected.items():
            if schema.get(key) != value:
                raise Refused(where, f"{key} {schema.get(key)!r}")
        if getattr(self.models, schema["cls"].__name__, None) is not schema["cls"]:
            raise Refused(where, f"a model from elsewhere, {schema['cls'].__name__}")
        if _known(schema["schema"], where) != "model-fields" or schema["schema"].get("computed_fields"):
            raise Refused(where, "something that is no field")

    def _field(self, name: str) -> str:
        field = self.fields[name]
        where = f"{self.name}.{name}"
        _known(field, where)
        alias = field.get("validation_alias", name)
        if not isinstance(alias, str):
            raise Refused(where, f"validation_alias {alias!r}")
        default = self._default(field["schema"], where)
        return f"({_quoted(name)}, ({_quoted(alias)},), {default}, {self._check(_inner(field['schema']), where)})"

    def _default(self, schema: Node, where: str) -> str:
        """What stands for a field that is absent. The check that follows makes a list or a dict anew each time.

        The compiled code checks the default as any value. pydantic does not, so it has to be what a check lets pass.
        """
        if _known(schema, where) != "default":
            return "_ABSENT"
        from pydantic_core import SchemaError, SchemaValidator, ValidationError  # noqa: PLC0415  as in _classes

        default = schema["default"]
        node = {"type": "definitions", "definitions": self.definitions, "schema": schema["schema"]}
        try:
            same = _same(SchemaValidator(node, {"strict": True}).validate_python(default), default)
        except (SchemaError, ValidationError):
            same = False
        if not same:
            raise Refused(where, f"default {default!r}, which is not what its own type makes of it")
        return _display(default, where)

    def _check(self, node: Node, where: str) -> str:
        kind = _known(node, where)
        if kind not in self.checks:
            raise Refused(where, f"node type {kind!r} in this place")
        return self.checks[kind](node, where)

    def _number(self, node: Node, where: str) -> str:
        bounds = (node.get("ge"), node.get("le"))
        for bound in bounds:
            if type(bound) not in (int, type(None)) and not (type(bound) is float and isfinite(bound)):
                raise Refused(where, f"bound {bound!r}")
        return f"(_{node['type']}, {bounds[0]}, {bounds[1]})"

    def _literal(self, node: Node, where: str) -> str:
        expected: list[str] = node["expected"]
        if not all(type(value) is str for value in expected):
            raise Refused(where, f"a literal that is no text in {expected!r}")
        return f"(_literal, {', '.join(map(_quoted, expected))})"

    def _nullable(self, node: Node, where: str) -> str:
        return f"(_nullable, {self._check(node['schema'], where)})"

    def _function(self, node: Node, where: str) -> str:
        """A function of hook/names.py from text to text: the one module that the compiled form imports."""
        _known(node["function"], where)
        function = node["function"]["function"]
        name = getattr(function, "__name__", repr(function))
        if getattr(self.models.names, name, None) is not function:
            raise Refused(where, f"function {name}, which is not one of hook/names.py")
        if _known(node["schema"], where) != "str" or function.__annotations__.get("return") not in ("str", str):
            raise Refused(where, f"function {name} on something other than text")
        return f"(_named, names.{name})"

    def _model(self, node: Node, where: str) -> str:
        return f"(_model, {self._model_name(node, where)})"

    def _list(self, node: Node, where: str) -> str:
        return f"(_list, {self._check(node['items_schema'], f'{where}[items]')})"

    def _dict(self, node: Node, where: str) -> str:
        of_key = f"{where}[keys]"
        if _known(node["keys_schema"], of_key) not in ("str", "function-after"):
            raise Refused(of_key, "keys other than text")
        values = self._check(node["values_schema"], f"{where}[values]")
        return f"(_dict, {self._check(node['keys_schema'], of_key)}, {values})"

    def _model_name(self, node: Node, where: str) -> str:
        if node["type"] == "definition-ref":
            node = next(known for known in self.definitions if known.get("ref") == node["schema_ref"])
        self._is_model(node, where)
        return str(node["cls"].__name__)


def _known(node: Node, where: str) -> str:
    """The type of a node whose keys are all known."""
    kind: str = node["type"]
    if kind not in KNOWN:
        raise Refused(where, f"node type {kind!r}")
    for key in node:
        if key not in KNOWN[kind] and key not in EVERYWHERE:
            raise Refused(where, f"key {key!r} of node type {kind!r}")
    return kind


def _inner(schema: Node) -> Node:
    """A field's own node, without its default."""
    return schema["schema"] if schema["type"] == "default" else schema


def _same(one: object, other: object) -> bool:
    """Equal, and of the same types all through: 1 is neither 1.0 nor True."""
    return repr(one) == repr(other)


def _display(value: object, where: str) -> str:
    """A default as Python text."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(_display(item, where) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_quoted(key)}: {_display(item, where)}' for key, item in value.items())}}}"
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and isfinite(value)):
        return repr(value)
    raise Refused(where, f"default {value!r}")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _block(head: str, body: Iterable[str], end: str = "") -> list[str]:
    """Lines with their head and, one level less indented, their end."""
    return [head, *(f"    {line}" if line else line for line in body), *([end] if end else [])]


# --- The verbs


def compile_verb(arguments: Sequence[str]) -> int:
    _no_more(arguments)
    _under_venv()
    from hook import models  # noqa: PLC0415  needs pydantic

    (ROOT / COMPILED).write_text(compile_models(models), encoding="utf-8")
    print(f"{COMPILED}: made anew")
    return 0


def test_verb(arguments: Sequence[str]) -> int:
    """The tests, of the .pyz as well as of the sources; pytest's exit status."""
    from tests import provision  # noqa: PLC0415  building takes nothing from tests/
    from tests.support import interpreters  # noqa: PLC0415

    _under_venv(provision.TEST)
    build(bytecode=[str(it.path) for it in interpreters.find()])
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, check=False).returncode


def demo_verb(arguments: Sequence[str]) -> int:
    from tests import provision  # noqa: PLC0415

    _under_venv(provision.DEMO)
    build(bytecode=at_hand())
    return subprocess.run([sys.executable, "-m", "tests.demo", *arguments], cwd=ROOT, check=False).returncode


def bench_verb(arguments: Sequence[str]) -> int:
    from tests import provision  # noqa: PLC0415

    if not arguments or arguments[0] not in BENCHES:
        given = f"unknown benchmark {arguments[0]}" if arguments else "bench takes the name of a benchmark"
        raise BuildError(f"{given} (there is: {', '.join(BENCHES)})")
    _under_venv(provision.TEST)
    build(bytecode=at_hand())
    command = [sys.executable, "-m", f"tests.bench.{arguments[0]}", *arguments[1:]]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def build_verb(arguments: Sequence[str]) -> int:
    options: dict[str, list[str]] = {"--python": [], "--output": [], "--bytecode": []}
    rest = [argument for argument in arguments if argument != "--release"]
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name not in options:
            raise BuildError(f"unknown option {name} (python3 build.py --help)")
        if not equals:
            if not rest:
                raise BuildError(f"{name} takes a value")
            value = rest.pop(0)
        options[name].append(value)
    build(
        output=Path(options["--output"][-1]) if options["--output"] else None,
        python=options["--python"][-1] if options["--python"] else PYTHON,
        bytecode=[path for path in options["--bytecode"] or at_hand() if path != "none"],
        release="--release" in arguments,
    )
    return 0


def help_verb(_arguments: Sequence[str]) -> int:
    print(__doc__, end="")
    return 0


def _no_more(arguments: Sequence[str]) -> None:
    if arguments:
        raise BuildError(f"one argument too many: {arguments[0]} (python3 build.py --help)")


def _under_venv(packages: Iterable[str] = ()) -> None:
    """Goes on under the python of the development tools: this same command, started anew if need be."""
    from tests import provision  # noqa: PLC0415

    try:
        python = provision.ensure(apt=packages)
    except provision.CannotProvision as error:
        raise BuildError(str(error)) from error
    if Path(sys.prefix) != python.parent.parent:
        os.execv(python, [str(python), *sys.argv])  # noqa: S606  the same command, under another python


BENCHES = ("attribution",)
VERBS = {
    "compile": compile_verb,
    "test": test_verb,
    "demo": demo_verb,
    "bench": bench_verb,
    "--help": help_verb,
    "-h": help_verb,
}


def main(arguments: Sequence[str]) -> int:
    try:
        if arguments and arguments[0] in VERBS:
            return VERBS[arguments[0]](arguments[1:])
        if arguments and not arguments[0].startswith("-"):
            raise BuildError(f"unknown verb {arguments[0]} (python3 build.py --help)")
        return build_verb(arguments)
    except (BuildError, OSError) as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
