"""Makes the program's modules from the bytecode in the .pyz, for the Python that it was compiled by.

The file's second line (build.py) runs this, and leaves it `f`, the file, open behind it. There lies what a container's
usual starts and ends need of the modules, in parts, and then the rest, module by module. The first part is run at once.
Another part, or the rest of a module, is run in the same modules as soon as anything of it is asked for: by its name,
or by a call of a function that has only a stand-in so far. Where there is no bytecode for a Python, this does not run,
and the sources are found.
"""

from __future__ import annotations

# ruff: noqa: F821  what the second line leaves
import _imp
import marshal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, BinaryIO

    f: BinaryIO

_places: Any = "PLACES"  # name, where, how long: of the parts, of the rests of modules (with a +), of other modules
_parts = ["first", "start", "end", "edge"]  # that are still to be run
_base = f.tell()
_ours: dict[str, ModuleType] = {}  # the modules that have a part, by name


def _code_of(name: str) -> Any:  # noqa: ANN401  the code of a module or, for a part, names of modules and their code
    for found, at, size in _places:
        if found == name:
            f.seek(_base + at)
            return marshal.loads(f.read(size))  # noqa: S302  as trusted as what runs this
    return None


def _have(part: str) -> None:
    """Run a part, unless it was."""
    if part in _parts:
        codes = _code_of(part)  # first: where the file cannot be read once, it may be the next time
        _parts.remove(part)
        for name, code in codes:
            exec(code, (_ours.get(name) or _made(name)).__dict__)  # noqa: S102  the same


def _made(name: str) -> ModuleType:
    module = _ours[name] = type(sys)(f"hook.{name}" if name else "hook")
    sys.modules[module.__name__] = module
    if name:
        setattr(sys.modules["hook"], name, module)
        module.__dict__.update(_tools)
        module.__dict__["__getattr__"] = _Method(_get, name)  # PEP 562
    else:
        module.__path__ = [sys.argv[1] + "/hook"]
    return module


def _get(name: str, wanted: str) -> object:
    """What a module has by this name, in its rest if need be."""
    if not wanted.startswith("__"):  # importlib asks for __path__
        _have_rest(name)
    if wanted in _ours[name].__dict__:
        return _ours[name].__dict__[wanted]
    raise AttributeError(f"module 'hook.{name}' has no attribute {wanted!r}")


def _have_rest(name: str) -> None:
    """Run the rest of a module, which may refer to anything of any part."""
    for part in tuple(_parts):
        _have(part)
    space = _ours[name].__dict__
    if "__getattr__" in space:
        code = _code_of(name + "+")
        del space["__getattr__"]
        exec(code or "", space)  # noqa: S102  the same


def _call(path: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401  whatever the function takes and returns
    """Call `part/module:function` or `part/module:class.method` (no part: the rest), which has only a stand-in so far.

    A stand-in is a method of this, bound.
    """
    part, _, path = path.rpartition("/")
    name, _, place = path.partition(":")
    owner, _, function = place.rpartition(".")
    if part:
        _have(part)
    else:
        _have_rest(name)
    space = _ours[name].__dict__
    return (space[owner].__dict__ if owner else space)[function](*arguments, **named)


def _later(path: str) -> Callable[..., Any]:
    """A stand-in for a method of a class that Python itself made."""
    return lambda *arguments, **named: _call(path, *arguments, **named)


def _class(module: str, methods: dict[str, Any]) -> Callable[..., object]:
    """What the build has in place of a class that has methods and nothing else: a function that makes its objects.

    For a type Python looks up each of the hundred names that it calls by itself, which takes as long as to load ten
    functions. The objects are modules, since those can be asked for what was not loaded yet (PEP 562).
    """
    init = methods.pop("__init__")

    def make(*arguments: Any, **named: Any) -> object:  # noqa: ANN401  whatever __init__ takes
        made = _Module(module)
        space = made.__dict__
        for name, function in make.__dict__.items():
            space[name] = _Method(function, made)
        space["__getattr__"] = _Method(_missing, (module, make.__dict__, made))
        init(made, *arguments, **named)
        return made

    make.__dict__.update(methods)
    return make


def _missing(of: tuple[str, dict[str, Any], ModuleType], wanted: str) -> object:
    """A method of such an object that was loaded later than it was made, or is to be loaded now."""
    module, methods, made = of
    if wanted not in methods:
        _have_rest(module)
    if wanted not in methods:
        raise AttributeError(f"no attribute {wanted!r}")
    found = made.__dict__[wanted] = _Method(methods[wanted], made)
    return found


def _merge(owner: type, rest: type) -> None:
    """Put the methods of a class in the places of their stand-ins."""
    for name, function in rest.__dict__.items():
        if type(function) is type(_merge):
            setattr(owner, name, function)


def _find_spec(name: str, _path: object = None, _target: object = None) -> object:
    if not name.startswith("hook."):
        return None
    for part in tuple(_parts):
        _have(part)
    code = "" if name in sys.modules else _code_of(name[len("hook.") :])
    return None if code is None else sys.modules["_frozen_importlib"].ModuleSpec(name, _finder, loader_state=code)


def _create_module(spec: Any) -> ModuleType | None:  # noqa: ANN401  a ModuleSpec
    return sys.modules.get(spec.name)


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
_finder.find_spec, _finder.create_module, _finder.exec_module = _find_spec, _create_module, _exec_module
sys.meta_path.insert(-1, _finder)
for _name in ("gc", "fcntl", "_json"):
    _import_quickly(_name)
import gc  # noqa: E402

# What a start makes it needs to its end; to look for garbage in it, again and again, takes a fiftieth of a start.
# Who stays longer has it looked for again (hook/usage.py).
gc.disable()
_Module, _Method = type(sys), type(_code_of.__get__(0))
_tools = {"_Method": _Method, "_call": _call, "_class": _class, "_later": _later, "_merge": _merge, "_ours": _ours}
_have("first")
