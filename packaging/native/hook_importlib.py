# SPDX-License-Identifier: Apache-2.0
"""importlib for a hook: what CPython calls in its core phase, for builtin and frozen modules alone.

A hook has one thread and no path to import from. CPython's own importlib/_bootstrap.py, with its
locks, finders and specs, takes a seventh of a hook's time to load, so freeze.py freezes this under
its name; commands for people get CPython's. Source: Python/import.c of CPython 3.13, which calls
these functions by IMPORTLIB(interp).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _imp
    import sys
    from collections.abc import Callable, Iterable
    from types import ModuleType


def _install(sys_module: ModuleType, imp_module: ModuleType) -> None:
    # No statement can import anything before this.
    globals().update(sys=sys_module, _imp=imp_module)


def _find_and_load(name: str, import_: Callable[[str], ModuleType]) -> ModuleType:
    """Import a module that is not in sys.modules, and its package before it."""
    package, _, own = name.rpartition(".")
    if package:
        import_(package)
    if _imp.is_builtin(name):
        module = _imp.create_builtin(type(sys.implementation)(name=name))  # type: ignore[call-arg, arg-type]
        _imp.exec_builtin(module)
        sys.modules[name] = module
    elif _imp.is_frozen(name):
        module = sys.modules[name] = type(sys)(name)
        module.__package__ = package
        if _imp.is_frozen_package(name):
            module.__package__, module.__path__ = name, []
        try:
            exec(_imp.get_frozen_object(name), module.__dict__)  # noqa: S102  our own
        except BaseException:
            del sys.modules[name]
            raise
    else:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    if package:
        setattr(sys.modules[package], own, module)
    return sys.modules[name]  # a module may put another in its place


def _handle_fromlist(
    module: ModuleType, names: Iterable[str], import_: Callable[[str], ModuleType]
) -> ModuleType:
    """Import those of a package's names that are modules in it."""
    for name in names:
        if not hasattr(module, name):
            path = f"{module.__name__}.{name}"
            try:
                import_(path)
            except ModuleNotFoundError as error:
                if error.name != path:
                    raise
    return module


def _module_repr(module: ModuleType) -> str:
    return f"<module {module.__name__!r}>"
