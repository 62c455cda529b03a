#!/usr/bin/env python3
"""Builds, packs, compiles, tests and shows resctrl-mon-hook.

  python3 build.py [--python PATH] [--output FILE] [--bytecode PATH]... [--release]
                             write dist/resctrl-mon-hook.pyz, and print its SHA-256 and its size, and whose bytecode
                             it holds. --python: the interpreter that the file names in its first line (default:
                             /usr/bin/python3). --bytecode: a CPython to compile for, may be given more than once
                             (default: those at hand: python3.9 to python3.14 on PATH or in /usr/bin, and the one that
                             builds; `none`: sources alone, which run on any Python, five times slower). --release: fail
                             unless there is bytecode for each version from 3.9 to 3.14
  python3 build.py package [deb] [rpm] [--release]
                             build, then pack it: dist/resctrl-mon-hook_VERSION_all.deb and dist/*.noarch.rpm, at which
                             lintian and rpmlint have had a look
  python3 build.py compile   make hook/models_compiled.py anew from the pydantic models in hook/models.py
  python3 build.py test ...  build, then run the tests; what follows goes to pytest
                             (`test tests/unit -k shebang`; with CI set, or with `--require fuse,podman,kernel`, say, a
                             skip in those tiers is a failure)
  python3 build.py demo ...  build, then show the hook at work on containers and a resctrl double
  python3 build.py bench [speed] ...
                             build, then measure what the hook takes of time, instructions and memory
  python3 build.py bench attribution ...
                             build, then measure in a guest what share of a container's work its group is charged
  python3 build.py faults [PART ...]
                             build, then let everything fail that the hook relies on, and see that nothing is lost
                             (`faults --help` names the parts)
  python3 build.py --help    print this

Building needs any CPython from 3.9 on and nothing else: the same sources, compiled by the same interpreters, give the
same bytes everywhere. The other verbs first make ready what they need (a .venv beside this file; Debian packages where
root allows it).
"""

from __future__ import annotations
import __future__

import ast
import base64
import copy
import errno
import hashlib
import importlib.util
import io
import itertools
import json
import marshal
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin

if TYPE_CHECKING:
    from types import CodeType, ModuleType

ROOT = Path(__file__).resolve().parent
OUTPUT = Path("dist") / "resctrl-mon-hook.pyz"
INSTALLED = ("oci-hooks/*.json", "packaging/systemd/*.*", "packaging/tmpfiles.d/*.conf")  # by the file itself
MODELS = Path("hook") / "models.py"
COMPILED = Path("hook") / "models_compiled.py"


class BuildError(Exception):
    """What the build cannot do; the message is for whoever builds."""


# --- The .pyz

PYTHON = "/usr/bin/python3"
# What starts the file. The kernel passes all that follows the interpreter as one argument, so Python takes it as its
# options -I -S -c and the code; the file's own path comes next, which makes sys.argv ['-c', path, ...]. That code runs
# the file line by line: the first, which is a comment to Python, and the second, which never comes back. From a file
# that was cut it does: exec() gives None, so any() ends with False, and 1/False is an error. There is no more to the
# contract between the two lines: who began with an older file goes on with a newer one that took its place.
# The point, though: a hook that fails stops containers, and from atexit on, whatever goes wrong (a truncated file, a
# SyntaxError, no memory) prints its traceback and exits with 0. No line can guard itself: a file cut within its first
# line has no such start. `python3 -m zipapp --python=...` may put another first line.
BOOT = "import sys,atexit,posix;atexit.register(posix._exit,0);f=open(sys.argv[1],'rb');1/any(map(exec,f))"
# The end of that line: for people whatever goes wrong from then on exits with 2. Behind an expression, `if ... else 0`
# is evaluated first. Kernels before 5.1 cut the line before this part, and run what is in front of it. The verbs for
# runtimes are those that begin with h, c or p. (Only a file that people may not read still exits with 0: it is opened
# in a statement of its own, before this, and there is no room to do it later.)
FOR_PEOPLE = 'if atexit.register(posix._exit,2*((sys.argv[2:]or"-")[0][:1]not in"hcp"))else 0'
# What the second line leaves to be run at exit, before the two above: `leave` in hook/system.py ends without it, so it
# runs only if the program did not. It says why, on stderr, and on the hook path in syslog, and waits for nobody. Any
# Python from 2.7 on has to understand it.
FALLBACK = """\
import sys,posix
file,verb=sys.argv[1],sys.argv[2:3]
hook=verb in(['hook'],['createRuntime'],['poststop'])
why='%s: nothing was done for this container: '%verb[0]if hook else''
if sys.version_info<(3,9):
 why+='%s is Python %d.%d, which is too old'%((sys.executable,)+sys.version_info[:2])
 why+='; hint: install Python 3.9 or newer, and run: PYTHON %s install --python=PYTHON'%file
else:
 why+='cannot run %s: %r'%(file,getattr(sys,'last_value',None))
 why+='; hint: the file is damaged (install it again), or there is too little memory'
line=('resctrl-mon-hook: '+why).encode('ascii','backslashreplace')[:2000]
try:
 import select
 if select.select([],[2],[],0)[1]:posix.write(2,line+b'\\n')
finally:
 try:
  if hook:
   import socket,time
   log=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM)
   log.setblocking(False)
   log.connect('/dev/log')
   log.send(('<28>'+time.strftime('%b %e %T ')).encode()+line.replace(b':',b'[%d]:'%posix.getpid(),1))
 finally:posix._exit(0 if hook else 2)
"""
# The second line, of any length: it goes to the loader for this very Python, past the zip's directory, or has the
# sources found. Behind it lies a table in marshal's second form, which every Python reads: where the loader lies,
# counted from the table's end, by the magic number of Python's bytecode. Whatever lies behind what it unmarshals does
# not matter to marshal, so all sizes are one. Compiling is dear: a module costs half a start, whatever its size
# (compile() makes Python's whole AST module ready; exec() of a text does not), and each word of this line the half of a
# thousandth: the fallback is one word.
SECOND_LINE = (
    "atexit.register(exec,{fallback!r},{{}});import marshal as m,_frozen_importlib_external as x;"
    "f.seek(m.loads(f.read({table})).get(x.MAGIC_NUMBER,{sources}),1);exec(m.loads(f.read({room})))\n"
)
ROOM = 1 << 14  # for a loader; what it loads in turn lies behind that
SOURCES = "bytecode/none"  # in the zip: what stands in for a loader where there is no bytecode
# A Python that is too old finds no bytecode of its own either, so it comes here, and goes on with the fallback.
FROM_SOURCES = "sys.version_info<(3,9)and sys.exit();sys.path[:0]=sys.argv[1:2];import hook.start"
# What the zip's own __main__.py does, for `python3 FILE.pyz`: the same. Before 3.0 exec is no function.
MAIN = f"""\
import sys

sys.argv[:0] = ['-c']
exec({BOOT + FOR_PEOPLE!r} if sys.version_info >= (3, 4) else {FALLBACK!r})
"""
# Linux reads 256 bytes of a file to see what starts it, and 128 before 5.1 (BINPRM_BUF_SIZE), and cuts the line there
# in silence. With the usual interpreter all of BOOT is in front of that place, and FOR_PEOPLE behind it.
SHEBANG_LIMIT = 255
OLD_SHEBANG_LIMIT = 127


def shebang(python: str = PYTHON) -> bytes:
    """The first line, newline included."""
    if not python.startswith("/") or len(python.split()) != 1 or not python.isprintable():
        raise BuildError(f"--python: the kernel takes an absolute path without blanks, not {python!r}")
    line = os.fsencode(f"#!{python} -ISc{BOOT}".ljust(OLD_SHEBANG_LIMIT) + FOR_PEOPLE + "\n")
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
    for pattern in INSTALLED:
        paths = sorted(root.glob(pattern))
        if not paths:
            raise BuildError(f"{pattern} is missing")
        found.update({str(path.relative_to(root)): path.read_bytes() for path in paths})
    return dict(sorted({**found, "__main__.py": MAIN.encode()}.items()))


MINORS = range(9, 15)  # of the CPythons 3.x that the file is made for
LOADER = "hook/loader.py"
START = "start"  # the module that runs the program
HOT_PATH = Path("hook") / "hot_path.txt"


class Bytecode(NamedTuple):
    """The modules as one interpreter compiled them: what the second line runs, in ROOM bytes, and the rest."""

    tag: str
    magic: bytes
    version: tuple[int, ...]
    content: bytes

    @property
    def entry(self) -> str:
        """Its name in the zip."""
        return f"bytecode/{self.tag}"


def compiled(contents: dict[str, bytes], interpreter: str, hot: Iterable[str]) -> Bytecode:
    """The bytecode that an interpreter makes of the modules. `hot`: see hot_path."""
    command = [interpreter, "-I", "-S", "-X", "utf8", "-X", "no_debug_ranges", str(Path(__file__).resolve()), BYTECODE]
    texts = {name: text.decode() for name, text in contents.items() if name.startswith("hook/")}
    text = json.dumps({"texts": texts, "hot": sorted(hot)})
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        raise BuildError(f"{interpreter} cannot compile: {said}") from error
    tag, magic, version, content = json.loads(done.stdout)
    return Bytecode(tag, base64.b64decode(magic), tuple(version), base64.b64decode(content))


def hot_path(root: Path = ROOT) -> list[str]:
    """The functions that a container's usual start and end run, as `module:qualified.name part`."""
    return [line for line in (root / HOT_PATH).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


def all_bytecode(contents: dict[str, bytes], interpreters: Iterable[str], hot: Iterable[str] = ()) -> list[Bytecode]:
    """The bytecode of the interpreters, in the order of their versions; of two of one version the first counts."""
    found: dict[str, Bytecode] = {}
    for interpreter in interpreters:
        bytecode = compiled(contents, interpreter, hot)
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
    sources = marshal.dumps(FROM_SOURCES, 2)
    data, found = _zipped({**contents, **{it.entry: it.content for it in bytecode}, SOURCES: sources})
    table = marshal.dumps({it.magic: found[it.entry] for it in bytecode}, 2)
    second_line = SECOND_LINE.format(fallback=FALLBACK, table=len(table), sources=found[SOURCES], room=ROOM)
    return first_line + second_line.encode() + table + data


def _zipped(contents: dict[str, bytes]) -> tuple[bytes, dict[str, int]]:
    """A zip, and where in it each entry's content is.

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
        places = {it.filename: it.header_offset + header + len(it.filename) for it in file.infolist()}
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
    chosen = all_bytecode(contents, bytecode, hot_path(root))
    lacking = [f"3.{minor}" for minor in MINORS if (3, minor) not in {it.version[:2] for it in chosen}]
    if release and lacking:
        found = f"no interpreter of {', '.join(lacking)}"
        raise BuildError(f"a release holds bytecode for every version; {found}: name each by --bytecode PATH")
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


# --- Bytecode: what a container's start runs, and the rest
#
# To load a function costs more than to run most of them: the half of a thousandth of a start, and a class ten times
# that. So what the functions on the hot path need is cut into the parts that hook/hot_path.txt names, of all modules
# together, of which a start loads the first, and another one or two once it is clear what it is about. The rest of each
# module lies behind them, and is run in the same module as soon as somebody asks for any of it. Functions that a part
# mentions and another one has are stand-ins until then; what only a failure needs is not even that. A class that has
# methods and nothing else is no type there (see hook/loader.py). Names, files and lines in a traceback are those of the
# source.

BYTECODE = "bytecode"
HELD = "PLACES"  # in the loader: where the build puts where all else lies
FIRST, REST = "first", ""
PARTS = (FIRST, "start", "end", "edge")


class _Stripped(ast.NodeTransformer):
    """A module without what nobody looks at when it runs: docstrings, annotations, what is for type checkers."""

    reads_fields = False  # a dataclass is made by its annotations

    def visit(self, node: ast.AST) -> Any:  # noqa: ANN401  as NodeTransformer has it
        if isinstance(node, ast.ImportFrom) and node.module == "dataclasses":
            self.reads_fields = True
        super().generic_visit(node)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                del node.body[0]
            if not node.body and not isinstance(node, ast.Module):
                node.body = [ast.copy_location(ast.Pass(), node)]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "errno":
            number = getattr(errno, node.attr)  # the same on every architecture that has resctrl; the import is dear
            return ast.copy_location(ast.Constant(number), node) if isinstance(number, int) else node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.AnnAssign) and not self.reads_fields:
            plain = ast.Assign([node.target], node.value) if node.value else None
            return plain and ast.copy_location(plain, node)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return node.orelse
        return None if isinstance(node, ast.ImportFrom) and node.module == "__future__" else node


class _Late(ast.NodeTransformer):
    """Has what only a failure needs, in `raise` and in `except` clauses, looked up when there is one.

    `homes`: the functions and classes of ours that may be meant there, with the module of each.
    """

    def __init__(self, homes: Mapping[str, str]) -> None:
        self.homes = dict(homes)
        self.failing = False

    def visit(self, node: ast.AST) -> Any:  # noqa: ANN401  as NodeTransformer has it
        if self.failing and isinstance(node, ast.Name) and node.id in self.homes:
            return ast.copy_location(_of_ours(self.homes[node.id], node.id), node)
        before = self.homes, self.failing
        self.failing = self.failing or isinstance(node, (ast.Raise, ast.ExceptHandler))
        if isinstance(node, ast.FunctionDef):
            own = _locals(node)
            self.homes = {name: home for name, home in self.homes.items() if name not in own}
        super().generic_visit(node)
        self.homes, self.failing = before
        return node


class _Module:
    """A module that is to be cut into parts. `hot`: the part of each of its functions on the hot path.

    `parts`: that of each other name that the hot path needs, and by no name that of the module itself. `stand_ins`: the
    functions that a part mentions and another one has.
    """

    def __init__(self, name: str, tree: ast.Module, hot: dict[str, str]) -> None:
        homes = {it.name: name for it in tree.body if isinstance(it, (ast.FunctionDef, ast.ClassDef))}
        for node in tree.body:
            if home := _home(node):
                homes.update(dict.fromkeys(_bound(node), home))
        self.name = name
        self.body = _Late(homes).visit(copy.deepcopy(tree)).body
        self.hot = hot
        self.binds: dict[str, ast.stmt] = {name: node for node in self.body for name in _bound(node)}
        self.parts: dict[str, str] = {}
        self.stand_ins: set[str] = set()

    def functions(self) -> Iterator[tuple[str, ast.FunctionDef, ast.ClassDef | None]]:
        """The functions and methods that may be in another part than what is around them, by qualified name."""
        for node in self.body:
            if isinstance(node, ast.FunctionDef) and not node.decorator_list:
                yield node.name, node, None
            elif isinstance(node, ast.ClassDef) and _is_plain(node):
                for it in node.body:
                    if isinstance(it, ast.FunctionDef) and it.name != "__init__":
                        yield f"{node.name}.{it.name}", it, node

    def with_class(self, cls: ast.ClassDef) -> list[ast.stmt]:
        """What is in the part that a class itself is in, in any case."""
        if _is_plain(cls):
            return [it for it in cls.body if _bound(it) == {"__init__"}]
        return [it for it in cls.body if not self._is_cold(cls, it)]

    def _is_cold(self, cls: ast.ClassDef, node: ast.stmt) -> bool:
        if not isinstance(node, ast.FunctionDef) or node.decorator_list or f"{cls.name}.{node.name}" in self.hot:
            return False
        return not any(isinstance(it, ast.Name) and it.id in ("super", "__class__") for it in ast.walk(node))

    def part(self, part: str) -> ast.Module:
        """What a part has of this module."""
        body: list[ast.stmt] = []
        for node in self.body:
            names = {name for name in _bound(node) if self.parts.get(name, REST) == part}
            if part != REST and _home(node) is not None:
                body += _present(node, names)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                body += _only(node, names)
            elif isinstance(node, ast.FunctionDef) and not node.decorator_list:
                if self.hot.get(node.name, REST) == part:
                    body.append(node)
                elif part == FIRST and node.name in self.stand_ins:
                    body.append(_assigned(node.name, self._stand_in(node.name), node))
            elif isinstance(node, ast.ClassDef) and node.name in self.parts:
                body += (self._plain_class if _is_plain(node) else self._class)(node, part)
            elif names or (not _bound(node) and self.parts[""] == part):
                body.append(node)
        return ast.fix_missing_locations(ast.Module(body, []))

    def _class(self, cls: ast.ClassDef, part: str) -> list[ast.stmt]:
        """A class that Python itself makes, with stand-ins for its cold methods; in the rest, those."""
        if self.parts[cls.name] == part:
            path = f"{self.name}:{cls.name}."  # Python binds no more than a function to its object
            later = {
                name: _call("_later", path + name) for it in cls.body if self._is_cold(cls, it) for name in _bound(it)
            }
            warm = [it for it in cls.body if not self._is_cold(cls, it)]
            body = [*warm, *(_assigned(name, it, cls) for name, it in later.items())]
            return [ast.copy_location(ast.ClassDef(**{**vars(cls), "body": body}), cls)]
        cold = [it for it in cls.body if part == REST and self._is_cold(cls, it)]
        methods = ast.ClassDef(**{**vars(cls), "name": "_rest", "bases": [], "body": cold})
        merge = ast.parse(f"_merge({cls.name}, _rest)").body[0]
        return [ast.copy_location(it, cls) for it in (methods, merge)] if cold else []

    def _plain_class(self, cls: ast.ClassDef, part: str) -> list[ast.stmt]:
        """Methods by their qualified names, and `name = _class(...)`, or more methods for it: see hook/loader.py."""
        own = self.parts[cls.name]
        made: list[ast.stmt] = []
        methods: dict[str, ast.expr] = {}
        for node in cls.body:
            if isinstance(node, ast.FunctionDef):
                name = f"{cls.name}.{node.name}"
                if (own if node.name == "__init__" else self.hot.get(name, REST)) == part:
                    made.append(ast.copy_location(ast.FunctionDef(**{**vars(node), "name": name}), node))
                    methods[node.name] = ast.Name(name, ast.Load())
                elif own == part and name in self.stand_ins:
                    methods[node.name] = self._stand_in(name)
        table = ast.Dict([ast.Constant(name) for name in methods], list(methods.values()))
        if own == part:
            return [*made, _assigned(cls.name, _call("_class", self.name, table), cls)]
        more = ast.Expr(_call(f"{cls.name}.__dict__.update", table))
        return [*made, ast.copy_location(more, cls)] if made else []

    def _stand_in(self, function: str) -> ast.expr:
        """What hook/loader.py has in place of a function that is in a part which was not loaded yet."""
        part = self.hot.get(function, REST)
        return _call("_Method", ast.Name("_call", ast.Load()), f"{part}/{self.name}:{function}".lstrip("/"))


_PASSIVE = (ast.FunctionDef, ast.ClassDef, ast.Assign, ast.Import, ast.ImportFrom)


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement gives a meaning to."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name for alias in node.names}
    inner = [it for it in ast.walk(node) if isinstance(it, (ast.Import, ast.ImportFrom))]
    stored = {it.id for it in ast.walk(node) if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store)}
    return stored.union(*map(_bound, inner))


def _only(node: ast.Import | ast.ImportFrom, names: set[str]) -> list[ast.stmt]:
    """An import of no more than these names."""
    aliases = [alias for alias in node.names if (alias.asname or alias.name) in names]
    return [ast.copy_location(type(node)(**{**vars(node), "names": aliases}), node)] if aliases else []


def _home(node: ast.AST | None) -> str | None:
    """The module of ours that a statement imports from; empty if it imports modules of ours, None if neither."""
    package, _, module = ((isinstance(node, ast.ImportFrom) and node.module) or "").partition(".")
    return module if package == "hook" else None


def _of_ours(module: str, name: str = "") -> ast.expr:
    """A module of ours, or a name of one, without Python's import, which is dear: see hook/loader.py."""
    found: ast.expr = ast.Subscript(ast.Name("_ours", ast.Load()), ast.Constant(module), ast.Load())
    return ast.Attribute(found, name, ast.Load()) if name else found


def _present(node: ast.stmt, names: set[str]) -> list[ast.stmt]:
    """An import of ours, of no more than these names. All that the first parts import of ours is there by then."""
    home = _home(node)
    sources = {name: _of_ours(home, name) if home else _of_ours(name) for name in _bound(node) & names}
    made = [ast.Assign([ast.Name(name, ast.Store())], source) for name, source in sorted(sources.items())]
    return [ast.copy_location(it, node) for it in made]


def _assigned(name: str, value: ast.expr, node: ast.stmt) -> ast.stmt:
    """`name = value`, in the place of a statement."""
    return ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], value), node)


def _call(function: str, *arguments: str | ast.expr) -> ast.expr:
    """A call of a function, or of a method of what a name stands for."""
    called = ast.parse(function, mode="eval").body
    return ast.Call(called, [ast.Constant(it) if isinstance(it, str) else it for it in arguments], [])


def _locals(function: ast.FunctionDef) -> set[str]:
    """The names that mean something of a function's own in it."""
    names = {it.id for it in ast.walk(function) if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store)}
    return names | {it.arg for it in ast.walk(function) if isinstance(it, ast.arg)}


def _is_plain(cls: ast.ClassDef) -> bool:
    """Whether a class does no more than to hold what its methods share: no base, nothing that Python itself calls."""
    methods = [it for it in cls.body if isinstance(it, ast.FunctionDef)]
    return not (
        cls.bases
        or cls.keywords
        or cls.decorator_list
        or any(it.decorator_list or (it.name.startswith("__") and it.name != "__init__") for it in methods)
        or any(not isinstance(it, ast.FunctionDef) and _bound(it) != {"__slots__"} for it in cls.body)
        or not any(it.name == "__init__" for it in methods)
    )


class _Cut:
    """Finds the part of each name, by need, from START on. What more than one part needs is in the first."""

    def __init__(self, modules: dict[str, _Module]) -> None:
        self.modules = modules
        self.needed: dict[tuple[str, str], set[str]] = {}
        self.attributes: dict[str, set[str]] = {part: set() for part in PARTS}
        self._need(START, "", FIRST)
        for (module, name), parts in self.needed.items():
            modules[module].parts[name] = next(iter(parts)) if len(parts) == 1 else FIRST
        for it in [modules[name] for name in self.present()]:
            for name, method, cls in it.functions():
                part = it.hot.get(name, REST)
                others = [self.attributes[other] for other in PARTS if other != part]
                if cls and part not in (FIRST, REST) and any(method.name in found for found in others):
                    it.stand_ins.add(name)

    def present(self) -> list[str]:
        """The modules that the hot path needs."""
        return [name for name in self.modules if (name, "") in self.needed]

    def _need(self, module: str, name: str, part: str) -> None:
        """Have a part have a name of a module; no name: the module itself."""
        parts = self.needed.setdefault((module, name), set())
        if part in parts:
            return
        parts.add(part)
        it = self.modules[module]
        if not name:
            self._start(it, part, new=len(parts) == 1)
            return
        self._need(module, "", part)
        node = it.binds[name]
        home = _home(node)
        if home is not None:
            self._mention(home or name, name if home else "", part)
            return
        for other in set() if isinstance(node, (ast.Import, ast.ImportFrom)) else _bound(node):
            self._need(module, other, part)
        for inner in it.with_class(node) if isinstance(node, ast.ClassDef) else [node]:
            self._use(module, inner, part)

    def _start(self, module: _Module, part: str, *, new: bool) -> None:
        """Have a part have what a module runs in any case, and if it is `new` each part the functions that it has."""
        for node in module.body:
            if not _bound(node):
                self._use(module.name, node, part)
            elif not isinstance(node, _PASSIVE):
                self._need(module.name, min(_bound(node)), part)
        for name, node, cls in module.functions() if new else ():
            if name in module.hot:
                self._need(module.name, cls.name if cls else "", module.hot[name])
                self._use(module.name, node, module.hot[name])

    def _use(self, module: str, node: ast.AST, part: str) -> None:
        """Have a part have what code of a module refers to: a function does so later, everything else at once."""
        later = isinstance(node, ast.FunctionDef)
        for it in ast.walk(node):
            if isinstance(it, ast.Subscript) and isinstance(it.value, ast.Name) and it.value.id == "_ours":
                self._need(ast.literal_eval(it.slice), "", part)
            elif isinstance(it, ast.Name):
                self._mention(module, it.id, part)
            elif isinstance(it, ast.Attribute):
                self.attributes[part].add(it.attr)
                if isinstance(it.value, ast.Name) and _home(self.modules[module].binds.get(it.value.id)) == "":
                    self._mention(it.value.id, it.attr, part, asked=later)

    def _mention(self, module: str, name: str, part: str, *, asked: bool = False) -> None:
        """Have a part have a name, or a stand-in for a function (for one of the rest, unless a module is `asked`)."""
        it = self.modules[module]
        node = it.binds.get(name)
        own = it.hot.get(name, REST)
        if not name or (node and not (isinstance(node, ast.FunctionDef) and not node.decorator_list)):
            self._need(module, name, part)
        elif node and own not in (part, FIRST) and not (asked and own == REST):
            it.stand_ins.add(name)
            self._need(module, "", FIRST)


def make_bytecode() -> None:
    """What each interpreter does for the build: the texts of the modules on stdin become code objects on stdout.

    It starts alone, so that nothing but its version and the texts has a part in the bytes.
    """
    given = json.load(sys.stdin)
    loader = _code(_Stripped().visit(ast.parse(given["texts"].pop(LOADER))), "loader")
    codes = _parts(given["texts"], given["hot"])
    contents = {name: _stable(code) for name, code in codes.items()}
    ends = itertools.accumulate(map(len, contents.values()))
    places = tuple((name, end - len(it), len(it)) for (name, it), end in zip(contents.items(), ends))
    consts = tuple(places if it == HELD else it for it in loader.co_consts)
    head = _stable(loader.replace(co_consts=consts)).ljust(ROOM, b"\0")
    if len(head) > ROOM:
        raise BuildError(f"the loader has {len(head)} bytes, and room for {ROOM}")
    parts = [importlib.util.MAGIC_NUMBER, head + b"".join(contents.values())]
    magic, content = [base64.b64encode(it).decode() for it in parts]
    print(json.dumps([sys.implementation.cache_tag, magic, list(sys.version_info[:3]), content]))


def _parts(texts: dict[str, str], hot: list[str]) -> dict[str, Any]:
    """What lies behind the loader: the parts, each as modules with their code in the order of imports; the rests of
    these modules, whose names have a +; and the modules that the hot path does not need.
    """
    trees = {path[len("hook/") : -len(".py")]: ast.parse(text, path) for path, text in texts.items()}
    package = _Stripped().visit(trees.pop("__init__"))
    functions: dict[str, dict[str, str]] = {name: {} for name in trees}
    for line in hot:
        place, part = line.split()
        module, _, function = place.partition(":")
        functions[module][function] = part
    modules = {name: _Module(name, _Stripped().visit(trees[name]), functions[name]) for name in _by_imports(trees)}
    present = _Cut(modules).present()
    found: dict[str, Any] = {}
    for part in PARTS:
        of_part = {name: modules[name].part(part) for name in present}
        made = {name: tree for name, tree in of_part.items() if tree.body or modules[name].parts[""] == part}
        first = {"": package} if part == FIRST else {}
        found[part] = tuple((name, _code(tree, name)) for name, tree in {**first, **made}.items())
    rests = {f"{name}+": modules[name].part(REST) for name in present}
    others = {name: trees[name] for name in modules if name not in present}
    return {**found, **{name: _code(tree, name) for name, tree in {**rests, **others}.items()}}


def _code(tree: ast.Module, name: str) -> CodeType:
    """The code object of a module, or a part of one."""
    path = f"hook/{name.rstrip('+') or '__init__'}.py"
    found: CodeType = compile(tree, path, "exec", __future__.annotations.compiler_flag, dont_inherit=True)
    return found


def _stable(code: Any) -> bytes:  # noqa: ANN401  whatever marshal takes
    """Bytes of code objects. They are unmarshalled first: the marks of references depend on who else held a string."""
    return marshal.dumps(marshal.loads(marshal.dumps(code)))  # noqa: S302  our own


def _by_imports(trees: dict[str, ast.Module]) -> list[str]:
    """The modules, every one behind those that it imports at once."""
    found: list[str] = []

    def add(name: str) -> None:
        if name in trees and name not in found:
            for node in trees[name].body:
                home = _home(node)
                if home is not None:
                    for inner in [home] if home else sorted(_bound(node)):
                        add(inner)
            found.append(name)

    for name in trees:
        add(name)
    return found


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
'''


class Refused(BuildError):
    """Something in a model that the compiler does not know."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}: not known to the compiler of the models (build.py)")


def compile_models(models: ModuleType) -> str:
    """The text of the compiled module for a module such as hook/models.py."""
    classes = _classes(models)
    exported = _block("__all__ = [", [f"{_quoted(name)}," for name in models.__all__], "]")
    prelude = PRELUDE.replace("__all__ = []", "\n".join(exported))
    compilers = [_Compiler(models, cls) for cls in classes]
    forms = _block("else:", [line for it in compilers for line in it.form()])
    types = _block("if TYPE_CHECKING:", [*_aliases(models), *(line for it in compilers for line in it.types())])
    return "\n".join([prelude, "", *types, *forms, ""])


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


def _aliases(models: ModuleType) -> list[str]:
    """The named literals, which the callers' annotations use."""
    literals = {name: value for name, value in vars(models).items() if get_origin(value) is Literal}
    return [f"{name} = Literal[{', '.join(map(_quoted, get_args(it)))}]" for name, it in literals.items()]


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

    def types(self) -> list[str]:
        """What the records of it are to those who check types."""
        nodes = {name: _inner(field["schema"]) for name, field in self.fields.items()}
        types = [f"{name}: {self._type(node, f'{self.name}.{name}')}" for name, node in nodes.items()]
        return ["", *_block(f"class {self.name}(Model):", types)]

    def form(self) -> list[str]:
        """What makes the records of it."""
        fields = [f"{self._field(name)}," for name in self.fields]
        body = [f"{_quoted(self.name)},", *(_block("(", fields, "),") if len(fields) > 1 else [f"({fields[0]}),"])]
        return _block(f"{self.name} = Form(", body, ")")

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
        default, check = self._default(field["schema"], where), self._check(_inner(field["schema"]), where)
        return f"({_quoted(name)}, {_quoted(alias)}, {default}, {_taken(check)}, {check})"

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
        keys, values = self._check(node["keys_schema"], of_key), self._check(node["values_schema"], f"{where}[values]")
        return "(_texts,)" if keys == values == "(_str,)" else f"(_dict, {keys}, {values})"

    def _model_name(self, node: Node, where: str) -> str:
        if node["type"] == "definition-ref":
            node = next(known for known in self.definitions if known.get("ref") == node["schema_ref"])
        self._is_model(node, where)
        return str(node["cls"].__name__)

    def _type(self, node: Node, where: str) -> str:
        kind = node["type"]
        if kind == "literal":
            return f"Literal[{', '.join(map(_quoted, node['expected']))}]"
        if kind == "nullable":
            return f"{self._type(node['schema'], where)} | None"
        if kind == "function-after":
            return self._type(node["schema"], where)
        if kind == "list":
            return f"list[{self._type(node['items_schema'], where)}]"
        if kind == "dict":
            return f"dict[str, {self._type(node['values_schema'], where)}]"
        return self._model_name(node, where) if kind in ("model", "definition-ref") else str(kind)


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


def _taken(check: str) -> str:
    """The types whose every value such a check takes as it is."""
    plain = {"(_str,)": "_STR", "(_bool,)": "_BOOL", "(_nullable, (_str,))": "_STR_NONE"}
    return plain.get(check, "_NONE" if check.startswith("(_nullable, ") else "_NO_TYPE")


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
    from hook.base import models  # noqa: PLC0415  needs pydantic

    (ROOT / COMPILED).write_text(compile_models(models), encoding="utf-8")
    print(f"{COMPILED}: made anew")
    return 0


def test_verb(arguments: Sequence[str]) -> int:
    """The tests, of the .pyz as well as of the sources; pytest's exit status."""
    from tests import provision  # noqa: PLC0415  building takes nothing from tests/
    from tests.support import interpreters  # noqa: PLC0415

    _under_venv(provision.TEST)
    build(bytecode=[str(it.path) for it in interpreters.find()])
    pytest = [sys.executable, "-m", "pytest"]
    if arguments:
        return subprocess.run([*pytest, *arguments], cwd=ROOT, check=False).returncode
    # All of them: the unit tests beside the others, which leave one CPU of two idle
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen([*pytest, UNIT], cwd=ROOT, stdout=said, stderr=said) as unit,
    ):
        others = subprocess.run([*pytest, f"--ignore={UNIT}"], cwd=ROOT, check=False).returncode
        status = unit.wait()
        said.seek(0)
        sys.stdout.write(said.read().decode(errors="replace"))
    return others or status


def demo_verb(arguments: Sequence[str]) -> int:
    from tests import provision  # noqa: PLC0415

    _under_venv(provision.DEMO)
    build(bytecode=at_hand())
    return subprocess.run([sys.executable, "-m", "tests.demo", *arguments], cwd=ROOT, check=False).returncode


def bench_verb(arguments: Sequence[str]) -> int:
    from tests import provision  # noqa: PLC0415
    from tests.support import interpreters  # noqa: PLC0415

    named = bool(arguments) and not arguments[0].startswith("-")
    name, rest = (arguments[0], arguments[1:]) if named else (BENCHES[0], arguments)
    if name not in BENCHES:
        raise BuildError(f"unknown benchmark {name} (there is: {', '.join(BENCHES)})")
    _under_venv(provision.TEST)
    build(bytecode=[str(it.path) for it in interpreters.find()])
    return subprocess.run([sys.executable, "-m", f"tests.bench.{name}", *rest], cwd=ROOT, check=False).returncode


def faults_verb(arguments: Sequence[str]) -> int:
    from tests import provision  # noqa: PLC0415

    _under_venv(provision.FAULTS)
    build(bytecode=at_hand())
    return subprocess.run([sys.executable, "-m", "tests.faults", *arguments], cwd=ROOT, check=False).returncode


def package_verb(arguments: Sequence[str]) -> int:
    """Packages of a .pyz for the interpreters at hand: packaging/package.py says which, and what it takes."""
    from tests import provision  # noqa: PLC0415

    for reason in provision.install(provision.PACKAGE):
        print(f"build.py: {reason}", file=sys.stderr)
    build(bytecode=at_hand(), release="--release" in arguments)
    kinds = [argument for argument in arguments if argument != "--release"]
    return subprocess.run(
        [sys.executable, ROOT / "packaging" / "package.py", ROOT / OUTPUT, *kinds], check=False
    ).returncode


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


UNIT = "tests/unit"
BENCHES = ("speed", "attribution")
VERBS = {
    "package": package_verb,
    "compile": compile_verb,
    "test": test_verb,
    "demo": demo_verb,
    "bench": bench_verb,
    "faults": faults_verb,
    "--help": help_verb,
    "-h": help_verb,
}


def main(arguments: Sequence[str]) -> int:
    try:
        if arguments == [BYTECODE]:
            make_bytecode()
            return 0
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
