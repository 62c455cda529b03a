# SPDX-License-Identifier: Apache-2.0
"""install and uninstall as the shipped file does them, on a machine whose /usr,
/etc and /run are scratch.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hook.node.paths import Places
from pyz import archive
from tests.kernel.inside import REAL_ROOT
from tests.resctrlfs import Mounted
from tests.support import machine
from tests.support.hook import NATIVE, PYZ, Hook, created, shipped, stopped, task
from tests.support.machine import AT_BOOT, HOOKS_DIR, LEFT, LINK, PROGRAM, UNITS, ScratchMachine

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES, PODMAN = (
    f"{HOOKS_DIR}/10-resctrl-mon-hook-{name}.json" for name in ("kubernetes", "podman")
)
TMPFILES = Places().tmpfiles
EVERYTHING = {*Places().files()}
"""What packages have of this is listed in tests/packages/test_files.py."""
LOGS = "/var/log/resctrl-mon-hook"
BYTECODE = f"{PROGRAM}.cpython-311"  # of a former version
HISTORY = f"--history={LOGS}/history.jsonl"
ETC_HOOKS = "/etc/containers/oci/hooks.d"


@pytest.fixture(autouse=True)
def ready() -> None:
    if REAL_ROOT is not None:
        pytest.skip("nothing of it touches resctrl")
    if reason := machine.missing():
        pytest.skip(reason)


@pytest.fixture
def node(tmp_path: Path) -> ScratchMachine:
    return ScratchMachine(tmp_path / "machine")


def done(node: ScratchMachine, *words: str) -> list[str]:
    """What a command that succeeds prints."""
    ended = node.run(*words)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def expect_refusal(node: ScratchMachine, *words: str) -> str:
    """What one that is refused says; it prints nothing."""
    ended = node.run(*words)
    assert (ended.returncode, ended.stdout) == (2, "")
    return ended.stderr


def hook_of(node: ScratchMachine, path: str) -> dict[str, object]:
    entry: dict[str, object] = json.loads(node.path(path).read_text())["hook"]
    return entry


# --- What is where


def test_what_a_dry_run_prints_is_done_and_again_it_changes_nothing(node: ScratchMachine) -> None:
    node.put(BYTECODE, "")
    plan = json.loads("\n".join(done(node, "install", "--for=both", "--dry-run", "--json")))
    assert node.written() == {BYTECODE: ""}
    assert plan["dry_run"] is True
    taken = json.loads("\n".join(done(node, "install", "--for=both", "--json")))
    assert taken == {**plan, "dry_run": False}
    writes = [step["what"] for step in plan["steps"] if step["step"] == "write"]
    assert (writes[0], writes[-2:]) == (PROGRAM, [KUBERNETES, PODMAN])
    written = node.written()
    assert set(written) == EVERYTHING
    assert node.path(PROGRAM).read_bytes() == shipped().read_bytes()
    directories = ("oci-hooks", "packaging/systemd", "packaging/tmpfiles.d")
    texts = {
        path.name: path.read_text() for name in directories for path in (ROOT / name).iterdir()
    }
    for path in EVERYTHING - {PROGRAM, LINK}:
        assert written[path] == texts[os.path.basename(path)]
    assert node.path(LOGS).lstat().st_mode == 0o040750
    modes = {path: node.path(path).lstat().st_mode & 0o7777 for path in written}
    assert modes == {
        path: 0o777 if path == LINK else 0o755 if path == PROGRAM else 0o644 for path in EVERYTHING
    }
    assert node.run(LINK, "--version").stdout.startswith("resctrl-mon-hook ")

    before = {path: node.path(path).lstat() for path in EVERYTHING}
    lines = done(node, "install", "--for=both")
    assert [line for line in lines if line.startswith(("write", "link", "remove"))] == []
    for path, status in before.items():
        assert (node.path(path).lstat().st_ino, node.path(path).lstat().st_mtime_ns) == (
            status.st_ino,
            status.st_mtime_ns,
        )


def test_options_reach_the_hooks_and_the_tools_read_them_there(node: ScratchMachine) -> None:
    words = [
        "--linger",
        "5",
        "--monitor=opt-in",
        "--group-prefix=mine-",
        "--annotation=a=b c",
        "--run-dir=/run/x",
    ]
    expected = [
        "--run-dir=/run/x",
        "--group-prefix=mine-",
        "--annotation=a=b c",
        "--monitor=opt-in",
        "--linger=5",
    ]
    done(node, "install", "--for=both", "--adopt", *words)
    for path, target in ((KUBERNETES, "kubernetes"), (PODMAN, "podman")):
        args = ["resctrl-mon-hook", "hook", f"--containers={target}", HISTORY, *expected]
        assert hook_of(node, path)["args"] == args
    assert f"ExecStart={LINK} reconcile --adopt\n" in node.written()[f"{UNITS}.service"]
    assert done(node, "install", "--for=podman")[0] == f"remove {KUBERNETES}"
    assert set(node.written()) == EVERYTHING - {KUBERNETES}
    assert hook_of(node, PODMAN)["args"] == [
        "resctrl-mon-hook",
        "hook",
        "--containers=podman",
        HISTORY,
    ]


def test_for_jobs_all_but_hooks_d_files_is_installed_and_those_of_before_are_removed(
    node: ScratchMachine,
) -> None:
    assert (
        done(node, "install", "--for=jobs", "--dry-run")[1].strip()
        == f"make {os.path.dirname(PROGRAM)}"
    )
    done(node, "install", "--for=both")
    said = expect_refusal(node, "install", "--for=jobs", "--linger=5")
    assert (
        "--for=jobs writes no hooks.d file that could keep --linger=5; remedy: give options of "
        "the hook to" in said
    )
    plan = [line.strip() for line in done(node, "install", "--for=jobs", "--dry-run")]
    assert plan[1:3] == [f"remove {KUBERNETES}", f"remove {PODMAN}"]
    taken = done(node, "install", "--for=jobs")
    assert (taken, plan[-1]) == (plan[1:-1], "nothing was changed (--dry-run)")
    written = node.written()
    assert (set(written), node.path(LOGS).is_dir()) == (EVERYTHING - {KUBERNETES, PODMAN}, True)
    assert not any(
        line.startswith(("write", "link", "remove")) for line in done(node, "install", "--for=jobs")
    )
    node.put_program("/usr/local/bin/containerd", "")
    ended = node.run(LINK, "history")
    assert "the first job that ends makes it: see list, and reconcile" in ended.stderr
    assert "containerd" not in "".join(done(node, "uninstall"))
    node.path("/usr/local/bin/containerd").unlink()
    assert node.written() == LEFT
    done(node, "install", "--for=jobs")  # where nothing was
    assert node.written() == written


@pytest.mark.parametrize(
    "before", [["--for=podman", "--key=sandbox", "--linger=30", "--adopt"], ["--for=jobs"], []]
)
def test_for_same_all_but_hooks_d_files_is_installed_and_those_of_before_stay(
    node: ScratchMachine, before: list[str]
) -> None:
    if before:
        done(node, "install", *before)
    else:  # hooks.d files of the administrator's own
        done(node, "install", "--for=both", "--hooks-dir=/etc/containers/oci/hooks.d")
    written = node.written()
    for path in (PROGRAM, LINK, f"{UNITS}.timer"):
        if path != f"{UNITS}.timer" or before != ["--for=jobs"]:  # whose mark is in the timer
            node.path(path).unlink()
    said = expect_refusal(node, "install", "--for=same", "--linger=5")
    assert (
        "--for=same writes no hooks.d file that could keep --linger=5; remedy: change the hooks.d "
        "files" in said
    )
    done(node, "install", "--for=same")
    assert node.written() == written


def test_the_history_outlives_an_uninstallation(node: ScratchMachine) -> None:
    done(node, "install", "--for=podman")
    node.put(f"{LOGS}/history.jsonl", "{}\n")
    node.put(BYTECODE, "")
    assert f"left: {LOGS}, the history of what containers and jobs have used" in done(
        node, "uninstall"
    )
    assert (node.written(), node.path(f"{LOGS}/history.jsonl").read_text()) == (LEFT, "{}\n")


def test_another_prefix_leaves_usr_alone(node: ScratchMachine) -> None:
    done(node, "install", "--for=both", "--prefix=/etc/opt/x")
    places = {
        "/usr/libexec": "/etc/opt/x/libexec",
        "/usr/bin": "/etc/opt/x/bin",
        "/usr/lib": "/etc",
        HOOKS_DIR: ETC_HOOKS,
    }

    def moved(path: str) -> str:
        top = next((place for place in places if path.startswith(f"{place}/")), None)
        return path if top is None else places[top] + path[len(top) :]

    assert set(node.written()) == set(map(moved, EVERYTHING))
    assert hook_of(node, moved(KUBERNETES))["path"] == moved(PROGRAM)
    assert f"ExecStart={moved(LINK)} reconcile\n" in node.written()[moved(f"{UNITS}.service")]
    done(node, moved(LINK), "uninstall")  # from there it knows what to take away
    line = "/etc/tmpfiles.d/resctrl-mon-hook-stub-etc-opt-x.conf"
    assert node.written() == {
        moved(PROGRAM): LEFT[PROGRAM],
        line: f"r! {moved(PROGRAM)}\nr! {line}\n",
    }


def test_into_a_tree_for_another_machine(tmp_path: Path) -> None:
    """Nothing of this machine counts: neither its systemd, nor who runs containers here.

    The program is called by a relative path, as in the documentation.
    """
    top, program = tmp_path / "tree", shipped()
    words = [f"./{program.name}", "install", f"--destdir={top}"]
    run = partial(
        subprocess.run, words, cwd=program.parent, capture_output=True, text=True, timeout=300
    )
    ended = run(check=False)
    assert ended.returncode == 2
    assert (
        "remedy: use --for=jobs on a node without containers, else --for=kubernetes, podman or both"
        in ended.stderr
    )
    assert not top.exists()
    (top / "usr/bin").mkdir(parents=True)
    (top / "usr/bin/crio").touch(0o755)
    ended = run(check=True)
    assert not re.search("^(run|try|compile) ", ended.stdout, re.MULTILINE)
    made = {f"/{path.relative_to(top)}" for path in top.rglob("*") if not path.is_dir()}
    assert made == EVERYTHING - {PODMAN} | {"/usr/bin/crio"}
    assert os.readlink(top / LINK[1:]) == "../libexec/oci/hooks.d/resctrl-mon-hook.pyz"
    subprocess.run(
        [program, "uninstall", f"--destdir={top}"], check=True, timeout=300, capture_output=True
    )
    made = {f"/{path.relative_to(top)}" for path in top.rglob("*") if not path.is_dir()}
    assert made == {*LEFT, "/usr/bin/crio"}


# --- systemd

TIMER, WATCH_UNIT, VIEW_UNIT, METRICS_UNIT = (
    f"resctrl-mon-hook-{name}"
    for name in ("reconcile.timer", "watch.service", "view.service", "metrics.service")
)
SERVICES = f"{WATCH_UNIT} {VIEW_UNIT}"


def give_systemd(node: ScratchMachine) -> Path:
    """A systemd that runs, whose programs note what they are called with."""
    node.path("/run/systemd/system").mkdir(parents=True)
    log = node.directory / "systemd.log"
    for name in ("systemctl", "systemd-tmpfiles", "systemd-run"):
        node.put_program(f"/usr/local/sbin/{name}", f'echo {name} "$@" >>{log}')
    return log


def test_the_timer_is_started_and_stopped_and_a_service_only_if_it_is_asked_for(
    node: ScratchMachine,
) -> None:
    log = give_systemd(node)
    both = ["--for=podman", "--watch", "--view"], f"{TIMER} {SERVICES}"
    for words, enabled in (
        (["--for=jobs"], TIMER),
        (["--for=jobs", "--view"], f"{TIMER} {VIEW_UNIT}"),
        both,
    ):
        done(node, "install", *words)
        assert log.read_text().splitlines() == [
            f"systemd-tmpfiles --create {TMPFILES}",
            "systemctl daemon-reload",
            f"systemctl enable --now {enabled}",
            f"systemctl try-restart {SERVICES} {METRICS_UNIT}",
        ]
        log.unlink()
    done(node, "install", "--for=podman", f"--destdir={node.directory}/tree")
    assert not log.exists()
    done(node, "uninstall")
    assert log.read_text().splitlines() == [
        f"systemctl disable --now {TIMER} {SERVICES} resctrl-mon-hook-textfile.timer "
        f"{METRICS_UNIT}",
        "systemctl daemon-reload",
    ]


# --- What is refused: nothing is in place then that a runtime would call


def test_a_file_of_others_is_in_the_way_and_stays(node: ScratchMachine) -> None:
    node.put(
        PODMAN,
        '{"version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {"always": true}, "stages": '
        "[]}",
    )
    assert f"{PODMAN} exists and was not installed by" in expect_refusal(
        node, "install", "--for=both"
    )
    assert set(node.written()) == {PODMAN}
    assert done(node, "uninstall") == [f"left: {PODMAN} was not installed by resctrl-mon-hook"]
    assert set(node.written()) == {PODMAN}


@pytest.mark.form("pyz")
def test_a_program_that_does_not_run_leaves_the_one_that_containers_call(
    node: ScratchMachine, tmp_path: Path
) -> None:
    done(node, "install", "--for=podman")
    before = node.path(PROGRAM).read_bytes()
    other = archive.build(output=tmp_path / "x.pyz", python="/usr/local/python")
    ended = node.run(sys.executable, other, "install", "--for=podman")
    assert (ended.returncode, ended.stdout) == (2, "")
    remedy = "see whether its interpreter is there"
    assert re.search(
        rf"does not run: cannot start: ENOENT \(#!/usr/local/python .*\); remedy: {remedy}",
        ended.stderr,
    )
    assert node.path(PROGRAM).read_bytes() == before
    assert [path.name for path in node.path(PROGRAM).parent.iterdir()] == ["resctrl-mon-hook.pyz"]


def test_file_systems_without_programs_and_those_that_are_read_only(tmp_path: Path) -> None:
    place = tmp_path / "x"
    place.mkdir()
    node = ScratchMachine(
        tmp_path / "machine", f"mount -t tmpfs -o noexec x {place}", "mount -o remount,ro /usr"
    )
    assert "or use --prefix=DIR if /usr is read-only" in expect_refusal(
        node, "install", "--for=podman"
    )
    install = ["install", "--for=podman", f"--prefix={place}"]
    said = expect_refusal(node, *install)
    remedy = "its file system is mounted noexec: mount -o remount,exec"
    assert re.search(rf"does not run: cannot start: EACCES(?: \(#!.*\))?; remedy: {remedy}", said)
    assert node.written() == {}
    remedy = said.partition("noexec: ")[2].strip()
    script = (
        f"mkdir -p {place}/libexec/oci/hooks.d && {remedy} && exec {shipped()} "
        f"{shlex.join(install)}"
    )
    cured = node.run("/bin/sh", "-c", script)
    assert cured.returncode == 0, cured.stderr
    done(node, "install", "--for=podman", "--prefix=/etc/opt/x")


# --- A loss of power

CALL = re.compile(
    r"(fsync|rename|unlink)\((?:[0-9]+<([^>]*)>|\"([^\"]*)\"(?:, \"([^\"]*)\")?)\) += 0"
)


def calls(node: ScratchMachine, *words: str) -> list[tuple[str, str, str]]:
    """What a command does to files' places and to the disk, in this order: the call,
    its file, a rename's target.
    """
    trace = node.directory / "trace"
    ended = node.run(*words, before=["strace", "-qq", "-y", "-o", str(trace)])
    assert ended.returncode == 0, ended.stderr
    calls = [
        match.groups(default="")
        for match in map(CALL.match, trace.read_text().splitlines())
        if match
    ]
    return [
        (call, opened or path, target)
        for call, opened, path, target in calls
        if not (opened + path).startswith("/tmp/")
    ]


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
def test_each_step_is_on_the_disk_before_the_next_is_taken(node: ScratchMachine) -> None:
    """Else a JSON might survive a loss of power, and its program not."""
    taken = calls(node, "install", "--for=both")
    assert [target for call, _, target in taken if call == "rename"][:: len(EVERYTHING) - 1] == [
        PROGRAM,
        PODMAN,
    ]
    for place, (call, path, target) in enumerate(taken):
        if call == "rename":
            assert (
                path.endswith("/.resctrl-mon-hook.new") or ("fsync", path, "") == taken[place - 1]
            )
            assert taken[place + 1] == ("fsync", os.path.dirname(target), "")
    gone = calls(node, "uninstall")
    assert next(path for call, path, _ in gone if call == "unlink") == KUBERNETES
    for place, (call, path, _) in enumerate(gone):
        assert call != "unlink" or gone[place + 1] == ("fsync", os.path.dirname(path), "")


# --- uninstall


def test_uninstall_leaves_nothing_and_dry_run_prints_its_steps(node: ScratchMachine) -> None:
    done(node, "install", "--for=both")
    before = node.written()
    head, *planned = done(node, "uninstall", "--dry-run")
    planned.remove("nothing was changed (--dry-run)")
    assert (head, node.written()) == ("would do:", before)
    plan = done(node, "uninstall")
    assert [line.strip() for line in planned] == plan
    assert node.written() == LEFT
    assert plan[:2] == [f"remove {KUBERNETES}", f"remove {PODMAN}"]
    assert plan[plan.index(f"remove {LINK}") :][:3] == [
        f"remove {LINK}",
        f"stub {PROGRAM}",
        f"write {AT_BOOT}",
    ]
    assert node.path(PROGRAM).lstat().st_mode == 0o100755
    assert not node.path(LOGS).exists()
    assert done(node, "uninstall") == []
    shown = json.loads("\n".join(done(node, "uninstall", "--json")))
    assert shown == {"dry_run": False, "steps": [], "unfinished": [], "left": []}
    # Another installation is one that the next boot leaves alone.
    lines = done(node, "install", "--for=both")
    assert lines.index(f"remove {AT_BOOT}") < lines.index(f"write {PROGRAM}")
    assert set(node.written()) == EVERYTHING


@pytest.fixture
def places(resctrl: Mounted, tmp_path: Path) -> list[str]:
    return [f"--run-dir={tmp_path}/run", f"--resctrl-root={resctrl.root}"]


def test_all_keys_end_with_it_also_those_that_live_or_linger(
    node: ScratchMachine, resctrl: Mounted, tmp_path: Path, places: list[str]
) -> None:
    """By the options in the hooks.d files."""
    done(node, "install", "--for=both", "--linger=3600", *places)
    node.put_program("/usr/local/bin/containerd", "")
    hook = Hook(resctrl.root, tmp_path / "run").with_options("--linger=3600")
    with task() as init, task() as other:
        hook(created("web", init.pid))
        hook(created("shop", other.pid))
        init.kill()
        init.wait()
        hook(stopped("web"))
        assert hook.groups() == {"oci-web", "oci-shop"}
        lines = done(node, LINK, "uninstall")
        assert "end all keys" in lines
        assert (
            lines[-1] == "if a base_runtime_spec of containerd names the program, "
            "remove that before the next boot"
        )
        assert hook.groups() == set()
        assert other.poll() is None
    assert not (tmp_path / "run").exists()
    ended = node.run(
        PROGRAM, "hook", "--containers=podman", stdin=None, input=json.dumps(stopped("shop"))
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_what_cannot_be_ended_is_named_and_the_program_stays_for_another_try(
    node: ScratchMachine, resctrl: Mounted, tmp_path: Path, places: list[str]
) -> None:
    """Until the next boot, which takes the records, too."""
    done(node, "install", "--for=both", *places)
    hook = Hook(resctrl.root, tmp_path / "run")
    with task() as init:
        hook(created("web", init.pid))
        resctrl.control(do="inject", op="rmdir", error="EPERM", times=1)
        ended = node.run("uninstall", *places)
        assert (ended.returncode, ended.stderr) == (1, "")
        assert "kept: key web: " in ended.stdout
        assert ended.stdout.splitlines()[-1].startswith(
            "run uninstall again: until then, or until the next boot,"
        )
        assert set(node.written()) == {PROGRAM, LINK, AT_BOOT}
        assert hook.groups() == {"oci-web"}
        done(node, LINK, "uninstall", *places)
        assert (hook.groups(), node.written()) == (set(), LEFT)
    assert not (tmp_path / "run").exists()


@pytest.mark.form("native")
def test_either_form_replaces_the_other_one_and_ends_its_containers(
    node: ScratchMachine, resctrl: Mounted, tmp_path: Path, places: list[str]
) -> None:
    for first, second in (PYZ, NATIVE), (NATIVE, PYZ):
        done(node, str(first), "install", "--for=podman", *places)
        hook = Hook(resctrl.root, tmp_path / "run", program=first)
        with task() as init:
            hook(created("web", init.pid))
            done(node, str(second), "install", "--for=podman", *places)
            assert node.path(PROGRAM).read_bytes() == second.read_bytes()
        assert hook.groups() == {"oci-web"}
        replace(hook, program=second)(stopped("web"))
        assert hook.groups() == set()
