# SPDX-License-Identifier: Apache-2.0
"""The .pyz: the first line, the second, which knows where in the file the bytecode is, and the zip."""

from __future__ import annotations

import hashlib
import io
import marshal
import os
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from hook.install.bytecode import HEADER_SIZE, START, Bytecode
from pyz import COMPILED, ROOT, BuildError
from pyz.bytecode import MINORS, compile_all

OUTPUT = Path("dist") / "resctrl-mon-hook.pyz"
INSTALLED = ("oci-hooks/*.json", "packaging/systemd/*.*", "packaging/tmpfiles.d/*.conf")  # by the file itself
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
FOR_PEOPLE = 'if atexit.register(posix._exit,2*((sys.argv[2:]or"-")[0][:2]not in"hocrpo"))else 0'
# What the second line leaves to be run at exit, before the two above: `leave` in hook/base/system.py ends without it,
# so it runs only if the program did not. It says why, on stderr, and on the hook path in syslog, and never blocks.
# Any Python from 2.7 on has to understand it. `_socket`, since `socket` takes memory that there may not be, and CPython
# 3.11 can loop for ever where it finds none for an exception.
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
   import _socket,time
   log=_socket.socket(_socket.AF_UNIX,_socket.SOCK_DGRAM)
   log.setblocking(False)
   log.connect('/dev/log')
   log.send(('<28>'+time.strftime('%b %e %T ')).encode()+line.replace(b':',b'[%d]:'%posix.getpid(),1))
 finally:posix._exit(0 if hook else 2)
"""
# The second line, of any length: it goes to the loader for this very Python, past the zip's directory, or has the
# sources found. Behind it lies a table in marshal's second form, which every Python reads: by the magic number of
# Python's bytecode, where the loader lies, counted from the table's end, and how long it is. Compiling is dear: a
# module costs half a start, whatever its size (compile() makes Python's whole AST module ready; exec() of a text does
# not), and each word of this line the half of a thousandth: the fallback is one word. What a start makes, from the
# bytecode on, it needs to its end: no garbage is looked for. (For people hook/cli/main.py has it looked for again.)
SECOND_LINE = (
    "atexit.register(exec,{fallback!r},{{}});import gc,marshal as m,_frozen_importlib_external as x;gc.disable();"
    "a,n=m.loads(f.read({table})).get(x.MAGIC_NUMBER,{sources});f.seek(a,1);exec(m.loads(f.read(n)))\n"
)
SOURCES = "bytecode/none"  # in the zip: the code that runs instead of a loader where there is no bytecode
BUILD_ID = "bytecode/build-id"  # in the zip: the digest of all other files but bytecode
# Without bytecode for this Python, the start looks for a file that the node has compiled from the same sources
# (hook/install/steps.py). It uses the file only if just root, or the user who runs it, can write to it. Else it
# runs from sources. Python 2.7 and later must be able to parse both texts: a too old one then runs the fallback.
FROM_SOURCES = f"sys.version_info<(3,9)and sys.exit();sys.path[:0]=sys.argv[1:2];import {START} as s;s.start()"
FROM_NODE = """\
s={sources!r}
try:
 a=posix.readlink('/proc/self/fd/%d'%f.fileno())+'.'+sys.implementation.cache_tag
 a=posix.open(a,posix.O_NOFOLLOW|posix.O_NONBLOCK)
 f=open(a,'rb')
 a=posix.fstat(a)
 if a.st_mode&0o170022==0o100000 and a.st_uid in(0,posix.geteuid()):
  n,b=m.loads(f.read({header}))
  if b==({build_id!r},x.MAGIC_NUMBER,a.st_size):s=m.loads(f.read(n))
except Exception:pass
exec(s)
"""
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


def read_sources(root: Path = ROOT) -> dict[str, bytes]:
    """What the zip holds but for bytecode: name to content, in the order of the zip."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in (root / "hook").rglob("*.py")}
    try:
        for models, compiled in COMPILED.items():
            found[models] = found.pop(compiled)  # the plain ones take the place of pydantic's
        del found["hook/__main__.py"]  # that is for the source tree
    except KeyError as error:
        raise BuildError(f"{error.args[0]} is missing") from error
    for pattern in INSTALLED:
        paths = sorted(root.glob(pattern))
        if not paths:
            raise BuildError(f"{pattern} is missing")
        found.update({str(path.relative_to(root)): path.read_bytes() for path in paths})
    return dict(sorted({**found, "__main__.py": MAIN.encode()}.items()))


def join(contents: dict[str, bytes], first_line: bytes, bytecode: Sequence[Bytecode] = ()) -> bytes:
    """The first line, the second, which knows where in the file the bytecode is, and the zip."""
    build_id = hashlib.sha256(_zipped(contents)[0]).digest()
    sources = marshal.dumps(FROM_NODE.format(sources=FROM_SOURCES, header=HEADER_SIZE, build_id=build_id), 2)
    shipped = {it.entry: it.content for it in bytecode}
    data, found = _zipped({**contents, **shipped, SOURCES: sources, BUILD_ID: build_id})
    table = marshal.dumps({it.magic: (found[it.entry], it.size) for it in bytecode}, 2)
    second_line = SECOND_LINE.format(fallback=FALLBACK, table=len(table), sources=(found[SOURCES], len(sources)))
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
    interpreters: Iterable[str] = (),
    release: bool = False,
) -> Path:
    """Write the .pyz beside its place and rename it there: a start gets the old file or the new one."""
    target = output or root / OUTPUT
    contents = read_sources(root)
    chosen = compile_all(contents, interpreters)
    lacking = [f"3.{minor}" for minor in MINORS if (3, minor) not in {it.version[:2] for it in chosen}]
    if release and lacking:
        found = f"no interpreter of {', '.join(lacking)}"
        raise BuildError(f"a release holds bytecode for every version; {found}: name each by --bytecode PATH")
    data = join(contents, shebang(python), chosen)
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
