"""The first code of ours that runs, by either way into the .pyz: its own first line, or `python3 FILE.pyz`.

The first line makes Python run `-c` code, which gives the file's path where the first argument is otherwise. It also
makes every end that is not `leave` exit with 0: a hook that fails for whatever reason must not fail the container.
"""

from __future__ import annotations

import marshal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _load(part: str) -> None:
    """Make the modules of a part of the program from the bytecode that the .pyz holds for this very Python, if any.

    All at once, in the order of their imports (build.py): an `import` that searches the zip takes a quarter of a
    millisecond, and one that finds the module made takes none. The file is named by the bytecode's magic number, since
    a pre-release of a Python shares its version's name. Where there is no such file, the sources are compiled.
    """
    bootstrap = sys.modules.get("_frozen_importlib_external")
    magic = getattr(bootstrap, "MAGIC_NUMBER", b"").hex()
    package: Any = sys.modules["hook"]
    try:
        codes = package.__loader__.get_data(f"{package.__path__[0]}/{sys.implementation.cache_tag}-{magic}-{part}")
    except OSError:
        return
    for name, code in marshal.loads(codes).items():  # noqa: S302  as trusted as this file
        module = type(sys)("hook." + name)
        sys.modules[module.__name__] = module
        setattr(package, name, module)
        exec(code, module.__dict__)  # noqa: S102  the same


_load("hook")

from hook import entry, system  # noqa: E402  not before they are made

arguments = sys.argv[2:] if sys.argv[0] == "-c" else sys.argv[1:]
if not entry.is_stage(arguments):
    _load("people")
system.leave(entry.main(arguments))
