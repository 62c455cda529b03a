"""Makes the program's modules from the bytecode in the .pyz, for the Python that it was compiled by.

The file's second line (build.py) runs this, and leaves it `f`, the file, open behind it. The build has put here what a
container's usual start needs of each module, in the order of their imports, and where the rest lies in the file, module
by module. The rest of a module is run in it as soon as anything of it is asked for: by its name, or by a call of a
function that has only a stand-in so far. Where there is no bytecode for a Python, this does not run, and the sources
are found.
"""

from __future__ import annotations

# ruff: noqa: F821  what the second line leaves
import _imp
import marshal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any, BinaryIO

    f: BinaryIO

_places: Any = "PLACES"  # name, where, how long; no name: what comes first; with a +: the rest of a module
_base = f.tell()
_ours: dict[str, ModuleType] = {}  # the modules that have a first part, by name


def _code_of(name: str) -> Any:  # noqa: ANN401  the code, names with the code of each, or None
    for found, at, size in _places:
        if found == name:
            f.seek(_base + at)
            return marshal.loads(f.read(size))  # noqa: S302  as trusted as what runs this
    return None


def _make(name: str, code: CodeType) -> None:
    module = _ours[name] = type(sys)(f"hook.{name}" if name else "hook")
    sys.modules[module.__name__] = module
    if name:
        setattr(sys.modules["hook"], name, module)
        module.__dict__.update(_tools)
        module.__dict__["__getattr__"] = _Method(_get, name)  # PEP 562
    else:
        module.__path__ = [sys.argv[1] + "/hook"]
    exec(code, module.__dict__)  # noqa: S102  the same


def _get(name: str, wanted: str) -> object:
    """What a module has by this name, in its rest if need be."""
    if not wanted.startswith("__"):  # importlib asks for __path__
        _have_rest(name)
    if wanted in _ours[name].__dict__:
        return _ours[name].__dict__[wanted]
    raise AttributeError(f"module 'hook.{name}' has no attribute {wanted!r}")


def _have_rest(name: str) -> None:
    space = _ours[name].__dict__
    if space.pop("__getattr__", None):
        exec(_code_of(name + "+") or "", space)  # noqa: S102  the same


def _call(path: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401  whatever the function takes and returns
    """Call `module:function` or `module:class.method`, for which there is only a stand-in: a method of this, bound."""
    name, _, place = path.partition(":")
    owner, _, function = place.rpartition(".")
    _have_rest(name)
    space = _ours[name].__dict__
    return (space[owner].__dict__ if owner else space)[function](*arguments, **named)


def _later(path: str) -> Callable[..., Any]:
    """A stand-in for a method of a class that Python itself made."""
    return lambda *arguments, **named: _call(path, *arguments, **named)


def _class(methods: dict[str, Any]) -> Callable[..., object]:
    """What the build has in place of a class that has methods and nothing else: a function that makes its objects.

    For a type Python looks up each of the hundred names that it calls by itself, which takes as long as to load ten
    functions.
    """
    init = methods.pop("__init__")

    def make(*arguments: Any, **named: Any) -> object:  # noqa: ANN401  whatever __init__ takes
        made = _Object()
        for name, function in make.__dict__.items():
            made.__dict__[name] = _Method(function, made)
        init(made, *arguments, **named)
        return made

    make.__dict__.update(methods)
    return make


def _merge(owner: type, rest: type) -> None:
    """Put the methods of a class in the places of their stand-ins."""
    for name, function in rest.__dict__.items():
        if type(function) is type(_merge):
            setattr(owner, name, function)


def _find_spec(name: str, _path: object = None, _target: object = None) -> object:
    code = _code_of(name[len("hook.") :]) if name.startswith("hook.") else None
    return code and sys.modules["_frozen_importlib"].ModuleSpec(name, _finder, loader_state=code)


def _exec_module(module: Any) -> None:  # noqa: ANN401  a ModuleType whose __spec__ is there
    exec(module.__spec__.loader_state, module.__dict__)  # noqa: S102  the same


def _import_quickly(name: str) -> None:
    """Import a module that is written in C where it usually is: to search for one takes a fiftieth of a start."""
    spec: Any = type(sys.implementation)(name=name, origin=None)  # type: ignore[call-arg]
    if name in sys.modules:
        return
    try:
        if name in sys.builtin_module_names:
            module = _imp.create_builtin(spec)
            _imp.exec_builtin(module)
        else:
            spec.origin = f"{sys.path[-1]}/{name}{_imp.extension_suffixes()[0]}"
            module = _imp.create_dynamic(spec)
            _imp.exec_dynamic(module)
    except Exception:  # noqa: BLE001  whatever it is: whoever needs the module has it searched for
        return
    sys.modules[name] = module


# A finder of modules (importlib's protocol) that is no class: one takes as long to make as to load ten functions.
_finder: Any = type(sys)("finder")
_finder.find_spec, _finder.exec_module, _finder.create_module = _find_spec, _exec_module, lambda _spec: None
sys.meta_path.insert(-1, _finder)
for _name in ("gc", "fcntl", "_json"):
    _import_quickly(_name)
import gc  # noqa: E402

# What a start makes it needs to its end; to look for garbage in it, again and again, takes a fiftieth of a start.
# Who stays longer has it looked for again (hook/usage.py).
gc.disable()
_Object, _Method = type(sys.implementation), type(_code_of.__get__(0))
_tools = {"_Method": _Method, "_call": _call, "_class": _class, "_later": _later, "_merge": _merge, "_ours": _ours}
for _name, _code in _code_of(""):
    _make(_name, _code)
