"""Makes the program's modules from the bytecode in the .pyz, for the Python that it was compiled by.

The file's second line (build.py) runs this, and leaves it `file`, open, and `place`: where in it, counted from `base`,
and how long, are this loader and its parts: the hook path, what is for people, and `start`, which runs either. Nobody
imports it.

All modules of a part are made at once, in the order of their imports: an `import` that finds its module made costs
nothing, one that has to search for it a quarter of a millisecond. Where there is no bytecode for a Python, this does
not run, and the sources are found.
"""

from __future__ import annotations

# ruff: noqa: F821  what the second line leaves
import marshal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

file: BinaryIO
base: int
place: tuple[int, ...]


def _load(offset: int, size: int) -> None:
    file.seek(base + offset)
    for name, code in marshal.loads(file.read(size)).items():  # noqa: S302  as trusted as the file that it is in
        module = type(sys)(f"hook.{name}" if name else "hook")
        sys.modules[module.__name__] = module
        if name:
            setattr(sys.modules["hook"], name, module)
        else:
            module.__path__ = [sys.argv[1] + "/hook"]  # the sources, for whatever is not among these
        exec(code, module.__dict__)  # noqa: S102  the same


_load(place[2], place[3])
if not sys.modules["hook.entry"].is_stage(sys.argv[2:]):
    _load(place[4], place[5])
_load(place[6], place[7])
