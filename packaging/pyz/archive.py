# SPDX-License-Identifier: Apache-2.0
"""Makes the .pyz: the first line starts it,
the second finds the bytecode in the zip, which follows.
"""

from __future__ import annotations

import hashlib
import io
import marshal
import os
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyz import COMPILED, ROOT, BuildError
from pyz.bytecode import MINORS, START, Bytecode, compile_all

OUTPUT = Path("dist") / "resctrl-mon-hook.pyz"
# By `install`, and completions by the packages
INSTALLED = (
    "oci-hooks/*.json",
    "packaging/completions/*",
    "packaging/systemd/*.*",
    "packaging/tmpfiles.d/*.conf",
)
PYTHON = "/usr/bin/python3"
# The first line. The kernel passes everything after the interpreter as one argument, which Python
# parses as the options -I -S -c and the code; the file's own path comes next, so sys.argv is ['-c',
# path, ...]. That code runs the file line by line: the first, which is a comment to Python, and the
# second, which never returns. In a truncated file it does: exec() returns None, so any() returns
# False, and 1/False raises. The two lines share no more than that, so a start by an older file can
# go on with a newer one that replaced it. The purpose: a hook that fails stops containers. From
# atexit on, any error (a truncated file, a SyntaxError, no memory) prints its traceback and exits
# with 0. A file that is cut within its first line has no such protection. `python3 -m zipapp
# --python=...` may replace the first line.
BOOT = (
    "import "
    "sys,atexit,posix;atexit.register(posix._exit,0);f=open(sys.argv[1],'rb');1/any(map(exec,f))"
)
# The end of that line: for people, any error from then on exits with 2. It is the condition of a
# conditional expression, `1/any(...) if ... else 0`, so it is evaluated first. Kernels before 5.1
# cut the line before this part, and run the rest. The verbs for runtimes begin with ho, cr or po.
# (A file that the caller may not read still exits with 0: it is opened in an earlier statement, and
# the line has no room to do it later.)
FOR_PEOPLE = 'if atexit.register(posix._exit,2*((sys.argv[2:]or"-")[0][:2]not in"hocrpo"))else 0'
# Code that the second line registers to run at exit, before the two above. `leave` in
# hook/system.py skips it, so it runs only if the program failed to run. It reports the reason, on
# stderr, and for runtimes in syslog, and never blocks. Any Python from 2.7 on must be able to parse
# it. `_socket`, since `socket` needs memory that may be missing, and CPython 3.11 can loop for ever
# if it has none for an exception. Then it executes the command of `run`, as hook/node/command.py
# does.
FALLBACK = """\
import sys,posix
file,verb=sys.argv[1],sys.argv[2:3]
hook=verb in(['hook'],['createRuntime'],['poststop'])
why='%s: nothing was done for this container: '%verb[0]if hook else''
if sys.version_info<(3,9):
 why+='%s is Python %d.%d, which is too old'%((sys.executable,)+sys.version_info[:2])
 why+='; hint: install Python 3.9 or newer, or the ELF file, which brings its own'
else:
 why+='cannot run %s: %r'%(file,getattr(sys,'last_value',None))
 why+='; hint: the file is damaged (install it again), or there is too little memory'
words=sys.argv[3:]
ours=words[:words.index('--')]if verb==['run']and'--'in words else['--strict']
command=[]if'--strict'in[word.split('=')[0]for word in ours]else words[len(ours)+1:]
if command:why+='; the command runs, and is not monitored'
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
   head=('<28>'+time.strftime('%b %e %T ')).encode()
   log.send(head+line.replace(b':',b'[%d]:'%posix.getpid(),1))
 finally:
  status=0 if hook else 2
  try:
   if command:
    import _signal
    status,name=127,command[0].encode(sys.getfilesystemencoding(),'surrogateescape')
    posix.umask(getattr(sys.modules.get('hook.system'),'umask_before',posix.umask(18)))
    for number in(_signal.SIGPIPE,_signal.SIGXFSZ):_signal.signal(number,_signal.SIG_DFL)
    if b'TZ'in posix.environ:posix.putenv(b'TZ',posix.environ[b'TZ'])
    try:
     sys.modules['__main__'].f.close()
     found,value=(b'\\0'+open('/proc/self/environ','rb').read()).partition(b'\\0LC_CTYPE=')[1:]
     posix.putenv(b'LC_CTYPE',value.split(b'\\0')[0])if found else posix.unsetenv(b'LC_CTYPE')
    except Exception:pass
    for place in[b'']if b'/'in name else posix.environ.get(b'PATH',b'/bin:/usr/bin').split(b':'):
     try:posix.execv(place+b'/'[:len(place)]+name,command)
     except OSError as error:status=status if error.errno in(2,20)else 126
  finally:posix._exit(status)
"""
# The second line, of any length: it runs the loader for this Python, or lets Python find the
# sources. After it comes a table in marshal's version 2, which every Python reads: by the magic
# number of Python's bytecode, the position of the loader, counted from the table's end, and its
# length. Compiling is expensive: a module costs half a start, whatever its size (compile()
# initializes Python's whole AST module; exec() of a text does not), and each word of this line half
# a thousandth, so the fallback is a single word, a string. A start uses all objects that it makes
# until its end, so the garbage collector is off. (For people hook/cli/command_line.py enables it
# again.)
SECOND_LINE = (
    "atexit.register(exec,{fallback!r},{{}});import gc,marshal as m,_frozen_importlib_external as "
    "x;gc.disable();"
    "a,n=m.loads(f.read({table})).get(x.MAGIC_NUMBER,{sources});f.seek(a,1);exec(m.loads(f.read(n)))\n"
)
# In the zip: the code that replaces the loader if there is no bytecode for a Python.
SOURCES = "bytecode/none"
# What runs without bytecode for a Python. Python 2.7 and later must be able to parse it:
# one before 3.9 runs the fallback.
FROM_SOURCES = (
    f"sys.version_info<(3,9)and sys.exit();sys.path[:0]=sys.argv[1:2];import {START} as s;s.start()"
)
# The zip's own __main__.py, for `python3 FILE.pyz`, which does the same.
# Before 3.0 exec is no function.
MAIN = f"""\
import sys

sys.argv[:0] = ['-c']
exec({BOOT + FOR_PEOPLE!r} if sys.version_info >= (3, 4) else {FALLBACK!r})
"""
# Linux reads 256 bytes of a file for its first line, and 128 before 5.1 (BINPRM_BUF_SIZE),
# and cuts a longer line silently. With the usual interpreter BOOT ends before byte 128,
# and FOR_PEOPLE begins there.
SHEBANG_LIMIT = 255
OLD_SHEBANG_LIMIT = 127


def shebang(python: str = PYTHON) -> bytes:
    """Return the first line, with its newline.

    Raises BuildError if the kernel would not accept it.
    """
    if not python.startswith("/") or len(python.split()) != 1 or not python.isprintable():
        raise BuildError(
            f"--python: the kernel takes an absolute path without blanks, not {python!r}"
        )
    line = os.fsencode(f"#!{python} -ISc{BOOT}".ljust(OLD_SHEBANG_LIMIT) + FOR_PEOPLE + "\n")
    if len(line) > SHEBANG_LIMIT:
        raise BuildError(
            f"the first line has {len(line)} bytes, and the kernel reads {SHEBANG_LIMIT}"
        )
    return line


def read_sources(root: Path = ROOT) -> dict[str, bytes]:
    """Return the zip's files without bytecode: content by name, in the order of the zip."""
    found = {
        str(path.relative_to(root)): path.read_bytes() for path in (root / "hook").rglob("*.py")
    }
    try:
        for models, compiled in COMPILED.items():
            found[models] = found.pop(compiled)  # the plain ones take the place of pydantic's
    except KeyError as error:
        raise BuildError(f"{error.args[0]} is missing") from error
    for pattern in INSTALLED:
        paths = sorted(root.glob(pattern))
        if not paths:
            raise BuildError(f"{pattern} is missing")
        found.update({str(path.relative_to(root)): path.read_bytes() for path in paths})
    return dict(sorted({**found, "__main__.py": MAIN.encode()}.items()))


def join(contents: dict[str, bytes], first_line: bytes, bytecode: Sequence[Bytecode] = ()) -> bytes:
    """Join the first line, the second with its table, and the zip to the content of the .pyz."""
    sources = marshal.dumps(FROM_SOURCES, 2)
    shipped = {made.entry: made.content for made in bytecode}
    data, found = zipped({**contents, **shipped, SOURCES: sources})
    table = marshal.dumps({made.magic: (found[made.entry], made.size) for made in bytecode}, 2)
    second_line = SECOND_LINE.format(
        fallback=FALLBACK, table=len(table), sources=(found[SOURCES], len(sources))
    )
    return first_line + second_line.encode() + table + data


def zipped(contents: dict[str, bytes], before: bytes = b"") -> tuple[bytes, dict[str, int]]:
    """Make a zip that follows these bytes; also returns the position of each entry's content.

    All fields that zipfile would derive from the machine or its own version are fixed.
    """
    buffer = io.BytesIO(before)
    with zipfile.ZipFile(buffer, "a") as file:
        for name, content in sorted(contents.items()):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            # Deflate would need zlib at run time, and gains nothing.
            entry.compress_type = zipfile.ZIP_STORED
            entry.create_system = 3  # Unix, whose mode bits follow
            entry.create_version = entry.extract_version = 20
            entry.external_attr = 0o100644 << 16
            file.writestr(entry, content)
        header = 30  # APPNOTE.TXT 4.3.7; the name follows, and no extra field
        places = {
            entry.filename: entry.header_offset + header + len(entry.filename)
            for entry in file.infolist()
        }
    return buffer.getvalue(), places


def build(
    root: Path = ROOT,
    output: Path | None = None,
    python: str = PYTHON,
    interpreters: Iterable[str] = (),
    release: bool = False,
) -> Path:
    """Write the .pyz beside its place and rename it there:
    a start gets the old file or the new one.
    """
    target = output or root / OUTPUT
    first_line, contents = shebang(python), read_sources(root)
    chosen = compile_all(contents, interpreters)
    lacking = [
        f"3.{minor}" for minor in MINORS if (3, minor) not in {code.version[:2] for code in chosen}
    ]
    if release and lacking:
        found = f"no interpreter of {', '.join(lacking)}"
        raise BuildError(
            f"a release holds bytecode for every version; {found}: put each on PATH, or name it "
            "by --bytecode PATH"
        )
    data = join(contents, first_line, chosen)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.chmod(0o755)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    print(f"{hashlib.sha256(data).hexdigest()}  {target}  {len(data)} bytes", flush=True)
    print(
        "bytecode:",
        ", ".join(".".join(map(str, code.version)) for code in chosen) or "none",
        flush=True,
    )
    return target
