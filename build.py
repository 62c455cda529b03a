#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds, packs, compiles, tests and shows resctrl-mon-hook.

  python3 build.py [--python PATH] [--output FILE] [--bytecode PATH]... [--release]
                             write dist/resctrl-mon-hook.pyz, and print its SHA-256, its size, and
                             the versions of its bytecode. --python: the interpreter in the file's
                             first line (default: /usr/bin/python3). --bytecode: a CPython to
                             compile for, may be given more than once (default: those of python3.9
                             to python3.14 that exist here, and the one that builds; `none`: sources
                             only, which a node compiles). --release: fail unless it has all six
  python3 build.py native [--release] [--for=MACHINE]
                             write dist/resctrl-mon-hook-MACHINE, the same program with a Python of
                             its own: one static ELF file. That Python is built once from Debian's
                             source package (8 minutes; needs gcc), and kept in the user's cache
                             directory. --release: from the newest source package. --for: x86_64, or
                             aarch64 by Debian's cross compiler (default: this machine's)
  python3 build.py package [deb] [rpm] [--check] [--release]
                             build the ELF file, then pack it:
                             dist/resctrl-mon-hook_VERSION_amd64.deb (needs dpkg-deb) and
                             dist/*.x86_64.rpm (needs rpmbuild). --check: fail unless lintian and
                             rpmlint accept them
  python3 build.py release   make dist/release/, all that users download: the .pyz with bytecode of
                             six versions, ELF files of x86_64 and aarch64, a .deb and an RPM of
                             each, the chart, a bill of materials (SPDX), and at last SHA256SUMS.
                             Needs a Debian on x86_64
  python3 build.py compile   compile the pydantic models (hook/models.py, hook/node/models.py) to
                             plain Python: a *_compiled.py beside each; make
                             docs/history.schema.json, packaging/completions, and the chart's copy
                             of packaging/prometheus/rules.yaml
  python3 build.py test      build, then run what shows most defects within minutes: the linters,
                             the unit and fuse tiers without their slow tests, and a few lives under
                             Podman; those of the ELF file if its Python has been built
  python3 build.py test --all
                             build both files, then run all tests; builds a Python, a kernel and
                             some Debians first, and says so
  python3 build.py test ARGUMENTS...
                             build, then run pytest with these (`test tests/unit -k shebang`;
                             `--form=native`: on the ELF file; with CI set, or with `--require
                             fuse,podman,kernel`, say, a skip in those tiers is a failure;
                             tests/cluster needs a cluster: tests/cluster/README.md)
  python3 build.py demo      build, then show the hook at work on containers and a model of resctrl;
                             where no container can be run, in the simulator of the tests
  python3 build.py bench [speed | life | attribution | scale | watch | view | fleet] ...
                             build, then measure: the hook's time, instructions and memory; a
                             container's life through a CRI, with and without the hook; in a guest,
                             the share of a container's CPU time that its group is charged;
                             reconcile on a node with thousands of containers; the CPU time and
                             memory of watch and of view; what loading and adding up the lines of
                             many nodes takes
  python3 build.py bench plot
                             draw docs/*.svg from docs/figures.json, which `--figures
                             docs/figures.json` of the benchmarks speed and attribution writes
  python3 build.py faults [PART ...]
                             build, then make everything fail that the hook depends on, and check
                             that nothing is lost (`faults --help` names the parts)
  python3 build.py --help    print this, also after one of these verbs (after `test`, `bench` and
                             `faults` their own)

Building needs any CPython from 3.9 on and nothing else. The same sources and interpreters give the
same bytes. The other verbs first install what they need (a .venv beside this file; Debian
packages, if run as root).
"""

from __future__ import annotations

import importlib
import os
import platform
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "packaging"))

from fetch import helm, interpreters, provision
from fetch.apt import CannotFetch
from native import cpython, native
from pyz import COMPILED, ROOT, SCHEMA, BuildError, archive, bytecode

APART = ("tests/unit", "tests/fuse", "tests/packages")
ALL_UNIT = ("tests/unit", "-p", "no:cacheprovider")
"""The run of `--all` that is an ordinary user's, to whom this checkout may be read-only."""
QUICKLY = ("-m", "not slow")
QUICK_LIVES = "tests/podman/test_life.py"
OF_THE_ELF_FILE = ("tests/fuse/test_native.py", "tests/fuse/test_both_forms.py")
LIVES = ("tests/podman", "tests/containerd")
OF_THE_PYZ = ("-m", "both_forms or form", "--form=pyz")
"""What `--all` runs on the .pyz, where there is an ELF file: what depends on the form,
and what is about this one.
"""
BENCHES = ("speed", "life", "attribution", "scale", "watch", "view", "fleet")
PLOT = "plot"


def compile_verb(arguments: Sequence[str]) -> int:
    if arguments:
        raise BuildError(f"one argument too many: {arguments[0]} (python3 build.py --help)")
    _under(provision.ensure)
    from pyz import compile_models  # noqa: PLC0415  needs pydantic

    for path, compiled in COMPILED.items():
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        (ROOT / compiled).write_text(compile_models.compile_models(module), encoding="utf-8")
        print(f"{compiled}: compiled")
    job = importlib.import_module("hook.node.models").Job
    (ROOT / SCHEMA).write_text(compile_models.make_schema(job), encoding="ascii")
    from pyz import completions  # noqa: PLC0415  needs the models

    for shell, text in completions.make_completions().items():
        (ROOT / "packaging/completions" / shell).write_text(text, encoding="ascii")
    # Helm refuses a link that leads out of the chart.
    shutil.copy(ROOT / "packaging/prometheus/rules.yaml", ROOT / "packaging/kubernetes/chart")
    return 0


def test_verb(arguments: Sequence[str]) -> int:
    """Run the tests; returns pytest's exit status.

    With CI set, files or processes left behind are a failure, too.
    """
    _under(lambda: provision.ensure(apt=provision.TEST))
    from tests.support import leftovers  # noqa: PLC0415  building takes nothing from tests/

    try:
        helm.fetch()
    except CannotFetch as error:
        print(f"build.py: no test of the chart: {error}", file=sys.stderr)
    _build_for_all()
    os.environ[leftovers.MARK] = str(os.getpid())
    # Otherwise each of thousands of processes compiles what it imports, those in guests too, where
    # it is slow.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(
        prefix=leftovers.own_mark(), ignore_cleanup_errors=True
    ) as own:
        os.chmod(own, 0o755)  # noqa: S103  processes of other users are among the tests
        os.environ["TMPDIR"] = tempfile.tempdir = own
        status = _run_tests(arguments)
        left = leftovers.find_left()
    print(*(f"LEFT: {line}" for line in left), sep="\n", end="\n" * bool(left))
    return status or int(bool(left and os.environ.get("CI")))


def _run_tests(arguments: Sequence[str]) -> int:
    """Run pytest: the lanes beside each other, the runs of each in turn;
    returns the worst of their exit statuses.
    """
    if not arguments:
        forms = _build_forms(must=False, can_wait=False)
        quick = [QUICK_LIVES, *OF_THE_ELF_FILE, f"--form={forms[-1]}"]
        lanes = [[["tests/unit", "--hypothesis-profile=dev"]], [["tests/fuse"], quick]]
        lanes = [[[*QUICKLY, *words] for words in lane] for lane in lanes]
    elif arguments == ["--all"]:
        _say_what_is_built_first()
        forms = _build_forms(must=bool(os.environ.get("CI")), can_wait=True)
        newest = f"--form={forms[-1]}"
        # The lane with the guests often waits, so that three keep two cores busy.
        lanes = [
            [[*(f"--ignore={tier}" for tier in APART), newest]],
            [[*ALL_UNIT], ["tests/packages", newest]],
            [["tests/fuse", newest]],
        ]
        if forms[-1] != "pyz":
            lanes[0].append([*LIVES, *OF_THE_PYZ])
            lanes[2].append(["tests/fuse", *OF_THE_PYZ])
    else:
        if "--form=native" in arguments:
            _build_forms(must=True, can_wait=True)
        # With this terminal (--pdb); pytest itself ends with what failed.
        status = _run("pytest", arguments)
        if status < 0:
            print(f"\n{_word_end(arguments, status)}")
        return int(bool(status))
    with ThreadPoolExecutor() as pool:
        runs = list(pool.map(_run_lane, lanes, [True] + [False] * (len(lanes) - 1)))
    print(*(line for lane in runs[1:] for _, lines in lane for line in lines), sep="\n")
    done = [
        (words, *run) for lane, results in zip(lanes, runs) for words, run in zip(lane, results)
    ]
    for words, status, lines in done:
        failed = [line for line in lines if line.startswith(("FAILED ", "ERROR ", "REQUIRED"))]
        if status and not failed:
            last = [line for line in lines if line][-1:]
            failed = [": ".join([_word_end(words, status), *last])]
        print(*failed, sep="\n", end="\n" * bool(failed))
    return int(any(status for _, status, _ in done))  # the status of a killed pytest is negative


def _word_end(words: Sequence[str], status: int) -> str:
    """How a run ended that names no test."""
    how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    return f"FAILED pytest {' '.join(words)}: {how}"


def _run_lane(lane: Sequence[Sequence[str]], aloud: bool) -> list[tuple[int, list[str]]]:
    results = []
    for words in lane:
        user = _become_ordinary() if tuple(words) == ALL_UNIT else []
        results.append(_run_and_read([*user, sys.executable, "-m", "pytest", *words], aloud))
    return results


def _become_ordinary() -> list[str]:
    """What root puts before a command, so that it runs as an ordinary user.

    That user reads what root may, for this checkout and its Python may lie below /root; what tools
    keep from one run to the next has a directory of its own.
    """
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam("nobody")
    kept = provision.cache(user.pw_name)
    kept.mkdir(parents=True, exist_ok=True)
    scratch = tempfile.mkdtemp()
    for place in (kept, scratch):
        shutil.chown(place, user.pw_uid, user.pw_gid)
    places = {"TMPDIR": scratch, "MYPY_CACHE_DIR": kept / "mypy", "RUFF_CACHE_DIR": kept / "ruff"}
    places |= {"HYPOTHESIS_STORAGE_DIRECTORY": kept / "hypothesis"}
    # It can write no bytecode beside the sources.
    places |= {"PYTHONPYCACHEPREFIX": f"{scratch}/pycache"}
    who = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    # Without no_setuid_fixup access(2) would not know what open(2) may do.
    reads = [f"--{kind}-caps=-all,+dac_read_search" for kind in ("inh", "ambient")]
    command = ["setpriv", *who, *reads, "--securebits=+no_setuid_fixup"]
    if not os.environ.get("CI"):  # with CI the run itself fails
        tried = subprocess.run([*command, "true"], stderr=subprocess.PIPE, text=True, check=False)
        if tried.returncode:
            print(f"build.py: root runs the unit tests: {tried.stderr.strip()}", file=sys.stderr)
            return []
    return [
        *command,
        "env",
        "USER=nobody",
        "LOGNAME=nobody",
        *(f"{name}={place}" for name, place in places.items()),
    ]


def _build_forms(*, must: bool, can_wait: bool) -> list[str]:
    """Build the ELF file; returns the forms that there are. `must`: without it there is no test.

    `can_wait`: until its Python is built, if it is not.
    """
    try:
        if not can_wait and cpython.find() is None:
            raise BuildError("its Python is not built yet; `python3 build.py native` does that")
        native.build()
    except (BuildError, CannotFetch, OSError) as error:
        if must:
            raise BuildError(f"no ELF file: {error}") from error
        print(f"build.py: no test of the ELF file: {error}", file=sys.stderr)
        return ["pyz"]
    return ["pyz", "native"]


def _say_what_is_built_first() -> None:
    from tests.kernel import kernel  # noqa: PLC0415  building takes nothing from tests/
    from tests.packages.conftest import DEBIAN, SUITES  # noqa: PLC0415
    from tests.support import debian, newest  # noqa: PLC0415

    built = {
        "the guests' kernel": (10, kernel.find()),
        "a Debian for containerd": (3, newest.find()),
    }
    built |= {
        f"Debian {version}": (3, debian.find(suite, *DEBIAN)) for version, suite in SUITES.items()
    }
    for what, (minutes, found) in built.items():
        if found is None:
            print(
                f"build.py: {what} has to be built first: {minutes} minutes on two idle cores",
                file=sys.stderr,
            )


def demo_verb(arguments: Sequence[str]) -> int:
    _under(provision.demo)
    archive.build(interpreters=bytecode.find_interpreters())
    return _run("tests.demo", arguments)


def bench_verb(arguments: Sequence[str]) -> int:
    named = bool(arguments) and not arguments[0].startswith("-")
    name, rest = (arguments[0], arguments[1:]) if named else (BENCHES[0], arguments)
    if name == PLOT:
        return _run("tests.bench.plot", rest)
    if name not in BENCHES:
        raise BuildError(f"unknown benchmark {name} (there is: {', '.join((*BENCHES, PLOT))})")
    _under(lambda: provision.ensure(apt=provision.TEST))
    _build_for_all()
    return _run(f"tests.bench.{name}", rest)


def faults_verb(arguments: Sequence[str]) -> int:
    _under(lambda: provision.ensure(apt=provision.FAULTS))
    from tests.support.hook import FORM  # noqa: PLC0415  building takes nothing from tests/

    archive.build(interpreters=bytecode.find_interpreters())
    if os.environ.get(FORM) == "native":
        _build_forms(must=True, can_wait=True)
    return _run("tests.faults", arguments)


def package_verb(arguments: Sequence[str]) -> int:
    """Build the ELF file, and pack it by packaging/package.py."""
    rest = [argument for argument in arguments if argument != "--release"]
    for reason in provision.install(
        (*provision.PACKAGE, *(provision.CHECK if "--check" in rest else ()))
    ):
        print(f"build.py: {reason}", file=sys.stderr)
    program = native.build(newest="--release" in arguments)
    command = [sys.executable, str(ROOT / "packaging" / "package.py"), str(program), *rest]
    return subprocess.run(command, check=False).returncode


def release_verb(arguments: Sequence[str]) -> int:
    """Make the files of a release by packaging/release.py,
    each with the newest fixes that Debian has.
    """
    if arguments:
        raise BuildError(f"one argument too many: {arguments[0]} (python3 build.py --help)")
    import release  # noqa: PLC0415  as in native_verb

    if absent := provision.install((*provision.PACKAGE, *provision.CHECK)):
        raise BuildError("; ".join(absent))
    os.umask(0o022)  # the packages must not depend on the caller's
    pythons = {
        str(python.path): ".".join(map(str, python.version)) for python in interpreters.find()
    }
    release.make(ROOT / "dist/release", pythons)
    return 0


def native_verb(arguments: Sequence[str]) -> int:
    """Build the ELF file. Its Python is built once, and kept outside of the checkout."""
    machine = platform.machine()
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name == "--for" and value:
            machine = value
        elif argument != "--release":
            raise BuildError(f"unknown option {argument} (python3 build.py --help)")
    native.build_for(
        machine, ROOT / "dist" / f"resctrl-mon-hook-{machine}", newest="--release" in arguments
    )
    return 0


def build_verb(arguments: Sequence[str]) -> int:
    options: dict[str, list[str]] = {"--python": [], "--output": [], "--bytecode": []}
    rest = [argument for argument in arguments if argument != "--release"]
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name not in options:
            raise BuildError(f"unknown option {name} (python3 build.py --help)")
        if not equals and not rest:
            raise BuildError(f"{name} takes a value")
        options[name].append(value if equals else rest.pop(0))
    archive.build(
        output=Path(options["--output"][-1]) if options["--output"] else None,
        python=options["--python"][-1] if options["--python"] else archive.PYTHON,
        interpreters=[
            it for it in options["--bytecode"] or bytecode.find_interpreters() if it != "none"
        ],
        release="--release" in arguments,
    )
    return 0


def help_verb(_arguments: Sequence[str]) -> int:
    print(__doc__, end="")
    return 0


def _build_for_all() -> None:
    """Build with bytecode for every interpreter that the tests find."""
    archive.build(interpreters=[str(it.path) for it in interpreters.find()])


def _run(module: str, arguments: Sequence[str]) -> int:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, check=False
    ).returncode


def _run_and_read(command: Sequence[str], aloud: bool) -> tuple[int, list[str]]:
    """Run a command; returns its status and output lines. `aloud`: also print each line at once."""
    lines = []
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            lines.append(line.rstrip("\n"))
            if aloud:
                print(lines[-1], flush=True)
    return process.returncode, lines


def _under(make_ready: Callable[[], Path]) -> None:
    """Continue under the Python that `provision` installs;
    executes this command again under it if necessary.
    """
    try:
        python = make_ready()
    except provision.CannotProvision as error:
        raise BuildError(str(error)) from error
    if python != Path(sys.executable) and python.parent.parent != Path(sys.prefix):
        os.execv(python, [str(python), *sys.argv])  # noqa: S606  the same command, under another python


VERBS = {
    "native": native_verb,
    "package": package_verb,
    "release": release_verb,
    "compile": compile_verb,
    "test": test_verb,
    "demo": demo_verb,
    "bench": bench_verb,
    "faults": faults_verb,
}
OWN_HELP = {"test", "bench", "faults"}
"""The verbs whose arguments go to another program, which has a help of its own."""


def main(arguments: Sequence[str]) -> int:
    try:
        if not {"--help", "-h"}.isdisjoint(arguments) and not {*arguments[:1]} & OWN_HELP:
            return help_verb(arguments)
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
