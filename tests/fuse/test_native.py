# SPDX-License-Identifier: Apache-2.0
"""What the ELF file alone has: its launcher, CPython's core phase,
and what is at the end of the file.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from hook.cli.verbs import VERBS
from hook.entry import STAGES
from native import cpython, freeze, native
from pyz import ROOT
from tests.support import zones
from tests.support.devlog import DevLog
from tests.support.hook import DEADLINE, NATIVE, Hook, Outcome, finish
from tests.unit.test_layers import BUILTIN

pytestmark = pytest.mark.form("native")
HINT = "hint: the file is damaged (install it again), or there is too little memory"
FATAL = ("SEGV", "BUS", "ABRT", "ILL", "FPE", "XCPU", "SYS", "TRAP")
ANY_CODE = "import sys; exec(sys.argv[-1])"


@pytest.fixture(scope="module")
def any_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with another start: it runs the code on its command line."""
    return native.build(output=tmp_path_factory.mktemp("native") / "any-code", start=ANY_CODE)


def run(
    program: Path, *words: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *words],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("module", sorted(BUILTIN))
def test_each_builtin_module_of_the_core_can_be_imported_in_the_core_phase(
    any_code: Path, module: str
) -> None:
    done = run(any_code, "hook", f"import {module}, posix; posix._exit(7)")
    assert (done.returncode, done.stderr) == (7, "")


CRASHES = {
    "import json": "",  # as _json does to raise its error
    "import _json; _json.scanstring('a', 0, True)": (
        "Unterminated string starting at: line 1 column 0 (char -1)"
    ),
    "b'x'.decode('latin2')": "no codec search functions registered: can't find encoding",
    "b'\\xff'.decode('utf-8', 'nothing')": "unknown error handler name 'nothing'",
    "b'\\xff'.decode()": "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    "'\\ud800'.encode()": (
        "'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed"
    ),
    "for name in HANDLERS: __import__('_codecs').lookup_error(name)": "",
    "from _signal import *; signal(SIGALRM, lambda *_: None); raise_signal(SIGALRM)": "",
}


HANDLERS = (
    "strict ignore replace xmlcharrefreplace backslashreplace namereplace surrogatepass "
    "surrogateescape"
)
"""Those that CPython registers itself: Python/codecs.c."""


@pytest.mark.parametrize(("code", "expected"), CRASHES.items(), ids=CRASHES)
def test_what_would_crash_in_the_bare_core_phase_is_an_error_there(
    any_code: Path, code: str, expected: str
) -> None:
    code = code.replace("HANDLERS", repr(HANDLERS.split()))
    text = (
        f"import posix\ntry:\n {code}\nexcept Exception as error: posix.write(1, "
        "str(error).encode())\nposix._exit(7)"
    )
    done = run(any_code, "hook", text)
    assert (done.returncode, done.stdout, done.stderr) == (7, expected, "")


@pytest.mark.parametrize(("verb", "status"), [("hook", 0), ("list", 3)])
def test_only_people_have_open_and_stdout_and_all_of_importlib(
    any_code: Path, verb: str, status: int
) -> None:
    there = "hasattr(builtins, 'open') + hasattr(sys, 'stdout')"
    there += " + hasattr(sys.modules['_frozen_importlib'], 'ModuleSpec')"
    code = f"import builtins, posix; posix._exit({there})"
    assert run(any_code, verb, code).returncode == status


@pytest.mark.parametrize("name", FATAL)
@pytest.mark.parametrize(
    ("words", "status"),
    [("hook", 0), ("createRuntime", 0), ("createRuntime --strict", 1), ("poststop --strict", 0)],
)
def test_fatal_signal_does_not_fail_a_container(
    any_code: Path, words: str, status: int, name: str
) -> None:
    done = run(
        any_code,
        *words.split(),
        f"import posix; posix.kill(posix.getpid(), {signal.Signals[f'SIG{name}']})",
    )
    stage = words.partition(" ")[0]
    why = f"nothing was done for this container: cannot run {any_code}: signal SIG{name}; {HINT}"
    assert (done.returncode, done.stderr) == (status, f"resctrl-mon-hook: {stage}: {why}\n")


def test_a_day_begins_with_its_first_moment_as_on_each_python(tmp_path: Path) -> None:
    """That of the .pyz is in unit/test_history.py."""
    program = native.build(
        output=tmp_path / "any-code", start=freeze.START.replace("module.start()\n", ANY_CODE)
    )
    command = [str(program), "list", f"{zones.CODE}sys.stdout.flush()\nos._exit(0)"]
    done = subprocess.run(
        command, input=zones.make_input(), env={}, capture_output=True, text=True, check=True
    )
    assert zones.find_wrong(done.stdout) == {}


SHOW = (
    "import posix; posix.write(1, posix.read(posix.open('/proc/self/{}', 0), 4096)); posix._exit(0)"
)


@pytest.mark.parametrize(
    ("verb", "given", "limits"),
    [
        ("hook", "unlimited:unlimited", "10 unlimited"),
        ("hook", "3:4", "3 4"),
        ("hook", "20:30", "10 30"),
        ("list", "unlimited:unlimited", "unlimited unlimited"),
    ],
)
def test_a_hook_ends_that_would_compute_for_ever(
    any_code: Path, verb: str, given: str, limits: str
) -> None:
    """By the kernel's limit of CPU seconds (SIGXCPU):
    CPython without memory can try a step again for ever.

    Without CAP_SYS_RESOURCE a hard limit cannot be raised.
    """
    command = [
        "setpriv",
        "--bounding-set=-sys_resource",
        "prlimit",
        f"--cpu={given}",
        str(any_code),
        verb,
    ]
    done = subprocess.run(
        [*command, SHOW.format("limits")], capture_output=True, text=True, check=True, env={}
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Max cpu time ")]
    assert line.split()[3:5] == limits.split()


@pytest.mark.parametrize(("verb", "limit"), [("hook", "8388608"), ("list", "262144")])
def test_a_hook_raises_a_small_limit_of_the_stack(any_code: Path, verb: str, limit: str) -> None:
    command = ["prlimit", "--stack=262144:unlimited", str(any_code), verb, SHOW.format("limits")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={})
    assert f"\nMax stack size            {limit} " in done.stdout


@pytest.mark.parametrize(("verb", "blocked"), [("hook", 0), ("list", 1)])
def test_a_hook_unblocks_the_signals_that_it_handles(
    any_code: Path, verb: str, blocked: int
) -> None:
    """The command of `run` gets those of its caller."""
    block = (
        "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); "
        "os.execv(*sys.argv[1:], "
    )
    block += "sys.argv[1:])"
    shell = [sys.executable, "-ISc", block.replace("*sys.argv[1:]", "sys.argv[1]")]
    done = subprocess.run(
        [*shell, str(any_code), verb, SHOW.format("status")],
        capture_output=True,
        text=True,
        check=True,
    )
    mask = int(done.stdout.partition("\nSigBlk:\t")[2].partition("\n")[0], 16)
    assert {mask >> signal.Signals[f"SIG{name}"] - 1 & 1 for name in FATAL} == {blocked}


HOSTILE = {
    "TZ": ":{fifo}",
    "LOCPATH": "{fifo}",
    "GLIBC_TUNABLES": "glibc.malloc.top_pad=99999999999999",
    "MALLOC_TOP_PAD_": "99999999999999",
    "PYTHONMALLOC": "nonsense",
    "MIMALLOC_VERBOSE": "1",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_environment_variable_stops_a_hook(any_code: Path, tmp_path: Path, name: str) -> None:
    """A FIFO has no end: localtime waits for it, which even the import of `time` calls.

    Nothing is left of it.
    """
    os.mkfifo(tmp_path / "fifo")
    code = "import time, posix; time.localtime(); posix._exit(7 + len(posix.environ))"
    environment = {"LC_ALL": "C.UTF-8", name: HOSTILE[name].format(fifo=tmp_path / "fifo")}
    done = subprocess.run(
        [any_code, "hook", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
    )
    assert (done.returncode, done.stderr) == (7, "")


def test_fatal_signal_is_in_syslog(any_code: Path, tmp_path: Path) -> None:
    with DevLog(tmp_path) as log:
        code = "import posix; posix.kill(posix.getpid(), 11)"
        subprocess.run(
            [*log.wrapper, any_code, "hook", code], check=True, stderr=subprocess.DEVNULL
        )
        text = log.socket.recv(4096).decode()
    assert text.startswith(
        "<28>resctrl-mon-hook: hook: nothing was done for this container: cannot run "
    )


def test_fatal_signal_ends_a_command_for_people_with_2(any_code: Path) -> None:
    done = run(any_code, "list", "import os; os.kill(os.getpid(), 11)")
    assert (done.returncode, done.stderr) == (
        2,
        f"resctrl-mon-hook: cannot run {any_code}: signal SIGSEGV; {HINT}\n",
    )


CODES = {
    "import os; os.kill(os.getpid(), 11)": "signal SIGSEGV",
    "import os; os.umask(0o77); os.putenv('TZ', 'y'); os.abort()": "signal SIGABRT",
    "import none": "ModuleNotFoundError",
    "raise MemoryError": "there is too little memory",
    # After the fork of --wait the child does it.
    "import os; os.fork() and os.kill(os.getpid(), 11)": "signal SIGSEGV",
    "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); f": "NameError",
}
"""What the program does in place of its own code, and the word of its line."""


@pytest.mark.parametrize("code", CODES)
def test_run_executes_its_command_once_if_the_program_fails(any_code: Path, code: str) -> None:
    shell = ["sh", "-c", "umask; echo $TZ; kill -TERM $$"]
    done = run(any_code, "run", "--", *shell, code, TZ="x")
    assert (done.stdout, CODES[code] in done.stderr, "Traceback" in done.stderr) == (
        "0022\nx\n",
        True,
        False,
    )
    assert "; the command runs, and is not monitored\n" in done.stderr
    assert done.returncode == (2 if "fork" in code else -signal.SIGTERM)
    for words in (["--strict", "--", *shell], ["--strict=", "--", *shell], shell):
        refused = run(any_code, "run", *words, code)
        assert (refused.returncode, refused.stdout) == (2, "")
    for name, status in (("no-such-command", 127), ("/", 126)):
        assert run(any_code, "run", "--", name, code).returncode == (
            2 if "fork" in code else status
        )


def test_stack_overflow_in_c_does_not_fail_a_container(any_code: Path) -> None:
    code = "import sys; sys.setrecursionlimit(1 << 30); f = lambda: [*map(lambda _: f(), '1')]; f()"
    assert run(any_code, "hook", code).returncode == 0


def test_error_in_the_core_is_said_in_one_line(any_code: Path) -> None:
    done = run(any_code, "createRuntime", "import none")
    assert done.returncode == 0
    why = "ModuleNotFoundError(\"No module named 'none'\")"
    assert done.stderr == (
        "resctrl-mon-hook: createRuntime: nothing was done for this container: cannot run "
        f"{any_code}: {why}; {HINT}\n"
    )


def test_with_too_little_memory_nothing_fails() -> None:
    """From what the kernel cannot load it with, to what is enough."""
    for mebibytes in range(2, 40):
        limit = ["prlimit", f"--as={mebibytes << 20}"]
        done = subprocess.run(
            [*limit, NATIVE, "hook"], input="", capture_output=True, text=True, check=False, env={}
        )
        was_loaded = done.returncode != -signal.SIGSEGV or mebibytes > 12
        assert done.returncode == 0 or not was_loaded, mebibytes


ABSENT = {
    **dict.fromkeys(
        ["_bz2", "_hashlib", "_lzma", "_ssl", "grp", "tracemalloc"], "its users do without it"
    ),
    **dict.fromkeys(["_winapi", "encodings.mbcs", "msvcrt", "nt", "winreg"], "of another system"),
    **dict.fromkeys(["getopt", "statistics"], "of a module that is run as a program"),
    **dict.fromkeys(
        ["importlib.metadata", "importlib.readers"], "of files that are installed beside Python's"
    ),
    "_strptime": "datetime.strptime: no time is parsed by a format",
    "calendar": "to parse a date of mail or of a certificate",
    "email.generator": "to write a mail: http.server only reads headers",
    "email.policy": "the same",
    "pickle": "to refuse to pickle a logger",
    "unicodedata": (
        "of \\N in a regular expression, as hooksd.py expects; of a URL's host; of a source's line"
    ),
}
"""The modules that those in the ELF file import somewhere, and that are not in it:
why none of its commands fails.

A failure imports what nothing else does. So this also has the imports in functions,
which freeze.py does not follow.
"""
FIND_ABSENT = """
import ast, sys
from pathlib import Path
packaging, library, program, *built_in = sys.argv[1:]
sys.path.insert(0, packaging)
import zipfile
from native import freeze
library = Path(library)
with zipfile.ZipFile(program) as file:
    names = [name for name in file.namelist() if name.endswith(".py") and "/" in name]
    texts = {name: file.read(name).decode() for name in names}
found = freeze.find_standard_library(texts, library)
known = {*found, *built_in, *freeze.IMPORTLIB}
def is_there(name):
    above = name.rpartition(".")[0]
    return name in known or bool(above) and freeze._path(name, library) is None and is_there(above)
for name, path in found.items():
    package = name if path.endswith("/__init__.py") else name.rpartition(".")[0]
    for it in freeze._imports(ast.parse((library / path).read_bytes()), package, in_functions=True):
        if not is_there(it) and (not it.rpartition(".")[0] or is_there(it.rpartition(".")[0])):
            print(it)
"""


def test_each_module_that_a_frozen_one_imports_anywhere_is_frozen_or_explained(
    any_code: Path,
) -> None:
    code = (
        "import sys; print(*sys.builtin_module_names); sys.stdout.flush(); import posix; "
        "posix._exit(0)"
    )
    built_in = run(any_code, "list", code).stdout.split()
    python = cpython.ready()
    words = [*map(str, (ROOT / "packaging", python.library, NATIVE)), *built_in]
    command = [str(python.python), "-ISBc", FIND_ABSENT, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={})
    assert {*done.stdout.split()} == ABSENT.keys()


def test_each_name_of_os_posix_and_fcntl_that_the_program_uses_is_there(any_code: Path) -> None:
    """CPython is built without what nothing uses (cpython.WITHOUT, cpython.CONSTANTS)."""
    trees = [ast.parse(path.read_text("utf-8")) for path in (ROOT / "hook").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    used = {
        (place.replace("posix", "os"), node.attr)
        for node in nodes
        if (place := ast.unparse(node.value).removeprefix("system.")) in ("os", "posix", "fcntl")
    }
    code = (
        f"import fcntl, os; print(*(used for used in {used} if not hasattr(eval(used[0]), used[1]))"
        "); import sys; sys.stdout.flush(); os._exit(0)"
    )
    assert run(any_code, "list", code).stdout == "\n"


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
@pytest.mark.parametrize("verb", [*STAGES, *VERBS, "help", "--version", "no-such-verb", ""])
def test_it_looks_up_nothing_before_its_first_line_and_nothing_where_it_was_called(
    tmp_path: Path, verb: str
) -> None:
    """Our first system call is umask (dispatch in hook/__main__.py),
    which neither CPython nor glibc calls.
    """
    os.mkfifo(tmp_path / "fifo")
    hostile = {
        **HOSTILE,
        "PATH": ":.",
        "LD_LIBRARY_PATH": ":.",
        "PYTHONHOME": ".",
        "LC_ALL": "tr_TR.ISO-8859-9",
    }
    environment = [
        f"--env={name}={text.format(fifo=tmp_path / 'fifo')}" for name, text in hostile.items()
    ]
    trace = [
        "strace",
        "-f",
        "-s4096",
        "--trace=%file,umask",
        f"--output={tmp_path / 'trace'}",
        *environment,
    ]
    words = (
        [verb, f"--run-dir={tmp_path}", f"--resctrl-root={tmp_path}"]
        if verb in STAGES
        else [verb, "--help"]
    )
    subprocess.run(
        [*trace, NATIVE, *words], cwd=tmp_path, env={}, stdin=subprocess.DEVNULL, check=False
    )
    before, umask, after = (tmp_path / "trace").read_text().partition(" umask(")
    assert re.findall(r'^\d+ +\w+\([^"]*"([^"]+)"', before, re.MULTILINE) == [
        str(NATIVE),
        "/proc/self/exe",
    ]
    assert umask, "it has a first line"
    assert re.findall(r'^\d+ +(?:\w+\((?:AT_FDCWD, )?"(?!/)|getcwd).*', after, re.MULTILINE) == []


SURROUNDINGS = {
    "FIFOs": "mkfifo {names}",
    "files without end": "for name in {names}; do ln -s /dev/zero $name; done",
    # Links to themselves.
    "files that cannot be opened": "for name in {names}; do ln -s $name $name; done",
    "a removed directory": "rmdir $PWD",
    "a directory that cannot be searched": (
        "chmod 0 .; set -- setpriv --bounding-set=-dac_override,-dac_read_search $@"
    ),
    "an empty PATH": "export PATH=",
    "a time zone without end": "mkfifo zone; export TZ=:$PWD/zone",
    "translations without end": (
        "mkdir LC_MESSAGES; mkfifo LC_MESSAGES/messages.mo; export LANGUAGE=$PWD"
    ),
}
"""What a shell does in a directory before it executes the program there.

No environment has a PATH with a python3.
"""
LANDMARKS = ("pyvenv.cfg", "pybuilddir.txt", "python3._pth")
"""What CPython looks for around itself: Modules/getpath.py."""


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_run_starts_its_command_in_any_surroundings(hook: Hook, tmp_path: Path, name: str) -> None:
    place = tmp_path / "outer" / "inner"
    place.mkdir(parents=True)
    names = " ".join(above + landmark for above in ("", "../") for landmark in LANDMARKS)
    script = f'PATH=/usr/bin:/bin; {SURROUNDINGS[name].format(names=names)}; exec "$@"'
    surrounded = replace(hook, wrapper=["/bin/sh", "-euc", script, "sh"])
    outcome = finish(surrounded.open("run", "--key=a", "--", "/bin/echo", "started", cwd=place))
    assert (outcome.status, outcome.stdout) == (0, "started\n")
    assert ("is not monitored" in outcome.stderr) == ("setpriv" in script), (
        "resctrl is not for all processes of root"
    )


def test_a_traceback_reads_no_file(any_code: Path, tmp_path: Path) -> None:
    """Python shows the lines of a file by the name that the code has."""
    os.mkfifo(tmp_path / "argparse.py")
    command = [
        str(any_code),
        "list",
        "import argparse; argparse.ArgumentParser(conflict_handler=1)",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False, timeout=DEADLINE
    )
    assert (done.returncode, "argparse.py" in done.stderr) == (2, True)


SIGNALS = """\
import os, signal, sys
ignored, blocked = ({*map(int, word.split())} for word in sys.argv[1:3])
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Executes a program with ignored and blocked signals."""
ALL_SIGNALS = " ".join(str(int(number)) for number in signal.valid_signals())


@pytest.mark.parametrize(("ignored", "blocked"), [("", ""), (ALL_SIGNALS, ""), ("", ALL_SIGNALS)])
@pytest.mark.parametrize("words", [(), ("--wait",)])
def test_command_of_run_gets_all_signals_as_they_were(
    hook: Hook, words: tuple[str, ...], ignored: str, blocked: str
) -> None:
    caller = [sys.executable, "-ISc", SIGNALS, ignored, blocked]
    command = ["/bin/grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"]
    wanted = subprocess.run([*caller, *command], capture_output=True, text=True, check=True, env={})
    outcome = finish(replace(hook, wrapper=caller).open("run", *words, "--", *command))
    assert outcome == Outcome(0, wanted.stdout, "")


def test_nothing_around_it_changes_what_it_runs(tmp_path: Path) -> None:
    for module in ("posix", "json", "hook", "encodings", "sitecustomize"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit(9)")
    hostile = {
        "PYTHONPATH": str(tmp_path),
        "PYTHONHOME": "/",
        "LC_ALL": "tr_TR.ISO-8859-9",
        "PYTHONINSPECT": "1",
    }
    done = run(NATIVE, "--version", cwd=tmp_path, **hostile)
    assert (done.returncode, done.stdout.split()[0]) == (0, "resctrl-mon-hook")


def test_zip_at_its_end_has_the_sources_and_any_python_runs_them() -> None:
    with zipfile.ZipFile(NATIVE) as file:
        assert file.testzip() is None
        assert {
            "__main__.py",
            "hook/entry.py",
            "packaging/systemd/resctrl-mon-hook-watch.service",
        } < {*file.namelist()}
    command = [sys.executable, "-I", str(NATIVE), "--version"]
    assert (
        subprocess.run(command, capture_output=True, check=True, text=True).stdout
        == run(NATIVE, "--version").stdout
    )


def test_is_a_static_pie_with_full_relro_and_no_executable_stack() -> None:
    """The kernel puts it at a random address, and what it calls through is read-only."""
    shown = subprocess.run(
        ["readelf", "-hldW", NATIVE], capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"^  Type: +DYN ", shown, re.MULTILINE)
    assert re.search(r"^  GNU_RELRO .+ R  ", shown, re.MULTILINE)
    assert re.search(r"^  GNU_STACK .+ RW  ", shown, re.MULTILINE)
    assert re.search(r"\(FLAGS\) +BIND_NOW$", shown, re.MULTILINE)
    assert not re.search("INTERP|NEEDED|TEXTREL| RWE ", shown)


def test_size_is_at_most_12_mb() -> None:
    assert os.stat(NATIVE).st_size <= 12_000_000
