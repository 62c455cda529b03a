# SPDX-License-Identifier: Apache-2.0
"""Makes the program's modules from the bytecode in the .pyz, under the Python that compiled it.

The file's second line (packaging/pyz/archive.py) runs this, with the file open as `f` at the
position after this code. The modules that the start of a container imports are constants here. All
others follow, one by one, and are loaded when they are imported. Under a Python without bytecode in
the file this does not run, and Python imports the sources.
"""

from __future__ import annotations

# ruff: noqa: F821  what the second line leaves
import marshal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any, BinaryIO

    f: BinaryIO

# Name and code of each, in the order of their imports; the last is started.
_modules: Any = "MODULES"
_places: Any = "PLACES"  # by name: where the others are, and how long
_base = f.tell()


def _path(name: str, code: CodeType) -> list[str] | None:
    """Return the `__path__` of a package, for modules without bytecode,
    or None for another module.
    """
    return (
        [f"{sys.argv[1]}/{name.replace('.', '/')}"]
        if code.co_filename.endswith("/__init__.py>")
        else None
    )


def _find_spec(name: str, *_: object) -> object:
    if name not in _places:
        return None
    at, size = _places[name]
    f.seek(_base + at)
    code: CodeType = marshal.loads(f.read(size))  # noqa: S302  as trusted as what runs this
    spec: Any = sys.modules["_frozen_importlib"].ModuleSpec(name, _finder, loader_state=code)
    spec.submodule_search_locations = _path(name, code)
    return spec


# A finder of modules (importlib's protocol), not as a class:
# to make one takes as long as to load ten functions.
_finder: Any = type(sys)("finder")
_finder.find_spec, _finder.create_module = _find_spec, lambda _spec: None
_finder.exec_module = lambda module: exec(module.__spec__.loader_state, module.__dict__)  # noqa: S102  the same
sys.meta_path.insert(-1, _finder)
for _name, _code in _modules:
    _made = sys.modules[_name] = type(sys)(_name)
    exec(_code, _made.__dict__)  # noqa: S102  the same
    _package, _, _own = _name.rpartition(".")
    if _package:
        setattr(sys.modules[_package], _own, _made)
for _name, _code in _modules:  # not before: to import from what has a __path__ takes longer
    if _found := _path(_name, _code):
        sys.modules[_name].__path__ = _found
sys.modules[_modules[-1][0]].start()
