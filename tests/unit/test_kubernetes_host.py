# SPDX-License-Identifier: Apache-2.0
"""What the chart's containers do to a host's files, which pyfakefs has below /host."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook import system
from hook.install.install import Refused
from hook.node import hooksd
from hook.node.paths import STUB, is_stub
from hook.node.programs import Exit
from hook.reconcile.run import Remains

import host
import node as image

PREFIX, HOOKS_DIR = "/usr", "/usr/share/containers/oci/hooks.d"
PROGRAM = "/usr/libexec/oci/hooks.d/resctrl-mon-hook.pyz"
OWNER = "/usr/libexec/oci/hooks.d/resctrl-mon-hook.owner"
JSON = f"{HOOKS_DIR}/10-resctrl-mon-hook-kubernetes.json"
OURS = "--containers=kubernetes"
HISTORY = "--history=/var/log/resctrl-mon-hook/history.jsonl"
RESCTRL = "/sys/fs/resctrl"


@pytest.fixture(autouse=True)
def _host(fs: FakeFilesystem, shipped: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without keys, as far as a container has it mounted."""
    monkeypatch.setattr(host, "end_all_keys", lambda _options: Remains([], []))
    monkeypatch.setattr(host, "run_program", lambda _words: Exit(0, "", ""))
    root = host.HOST
    for path in (os.path.dirname(PROGRAM), HOOKS_DIR):
        fs.create_dir(f"{root}{path}")
    fs.create_dir(RESCTRL)
    fs.create_file(host.SHIPPED, contents=shipped)


def node(*words: str) -> host.Host:
    return host.Host(PREFIX, HOOKS_DIR, words, "shop/hook")


def at(path: str) -> Path:
    return Path(f"{host.HOST}{path}")


def files() -> list[str]:
    """Return the paths of all files in the two directories."""
    directories = (os.path.dirname(PROGRAM), HOOKS_DIR)
    return sorted(
        f"{directory}/{name}" for directory in directories for name in os.listdir(at(directory))
    )


def test_the_program_and_the_json_are_put_in_place_and_nothing_else(shipped: bytes) -> None:
    assert not node().is_installed()
    assert node("--linger=5").install() == [
        f"write {at(path)}" for path in (OWNER, PROGRAM, JSON)
    ], "the JSON is last"
    assert files() == sorted([OWNER, PROGRAM, JSON])
    assert at(PROGRAM).read_bytes() == shipped
    assert at(OWNER).read_text() == f"chart\nshop/hook\n{HOOKS_DIR}\n"
    assert {path: at(path).stat().st_mode & 0o7777 for path in files()} == {
        OWNER: 0o644,
        PROGRAM: 0o755,
        JSON: 0o644,
    }
    file = hooksd.read_entry(str(at(JSON))).file
    assert file is not None
    assert (file.hook.path, file.hook.args) == (
        PROGRAM,
        ["resctrl-mon-hook", "hook", OURS, HISTORY, "--linger=5"],
    )
    assert node("--linger=5").is_installed()
    before = [at(path).stat().st_ino for path in files()]
    assert node("--linger=5").install() == [], "again, it changes nothing"
    assert [at(path).stat().st_ino for path in files()] == before


def test_reconcile_gets_the_options_of_the_json_and_a_wrong_one_is_refused_first() -> None:
    assert node("--monitor=opt-in").options == [OURS, "--linger=600", HISTORY, "--monitor=opt-in"]
    assert node("--linger=5").options == [OURS, HISTORY, "--linger=5"]
    assert node("--history=").options == [OURS, "--linger=600", "--history="], (
        "which switches it off"
    )
    with pytest.raises(Refused, match="unknown option '--lingr'"):
        node("--lingr=5")


def test_the_json_has_the_name_of_the_node_that_kubernetes_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(image.VERBS, "install", lambda node: node.install() and None)
    monkeypatch.setenv("NODE_NAME", "n1.example")
    words = [f"--prefix={PREFIX}", f"--hooks-dir={HOOKS_DIR}", "--release=shop/hook", "--linger=5"]
    assert image.main(["install", *words]) == 0
    file = hooksd.read_entry(str(at(JSON))).file
    assert file is not None
    assert file.hook.args == [
        "resctrl-mon-hook",
        "hook",
        OURS,
        HISTORY,
        "--linger=5",
        "--node=n1.example",
    ]


def test_a_file_that_is_cut_or_changed_is_refused_and_nothing_changes(shipped: bytes) -> None:
    node().install()
    before = [at(path).stat().st_ino for path in files()]
    for damaged in (shipped[:-1], shipped[: len(shipped) // 2], b"\x7fELG" + shipped[4:]):
        Path(host.SHIPPED).write_bytes(damaged)
        with pytest.raises(
            Refused, match=f"{host.SHIPPED} is damaged.*; remedy: make the image again"
        ):
            node()
    assert [at(path).stat().st_ino for path in files()] == before


@pytest.mark.parametrize("before", ["nothing", "an older version", "a stub"])
def test_a_program_that_does_not_run_is_refused_and_runtimes_start_what_they_did(
    monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    if before == "an older version":
        node().install()
        at(PROGRAM).write_text("an older hook/__init__.py")
    elif before == "a stub":
        at(PROGRAM).write_bytes(STUB)
    kept = {path: at(path).read_bytes() for path in files()}
    answers = [Exit(None, "", "cannot start: EACCES"), *[Exit(0, "", "")] * 2]
    tried: list[str] = []

    def run(words: list[str]) -> Exit:
        tried.append(words[0])
        return answers.pop(0)

    monkeypatch.setattr(host, "run_program", run)
    with pytest.raises(Refused, match="does not run: cannot start: EACCES; remedy: "):
        node().install()
    assert {path: at(path).read_bytes() for path in files()} == kept
    node().install()
    assert node().is_installed(), "the cause is gone"
    new = f"{at(PROGRAM).parent}/.{at(PROGRAM).name}.new"
    assert tried == [new, new, *([] if JSON in kept else [str(at(PROGRAM))])]


def test_a_program_in_place_that_does_not_run_gets_no_json(monkeypatch: pytest.MonkeyPatch) -> None:
    node().install()
    at(JSON).unlink()
    monkeypatch.setattr(
        host, "run_program", lambda words: Exit(None, "", f"cannot start: {words[0]}")
    )
    with pytest.raises(
        Refused, match=f"{at(PROGRAM)} does not run: cannot start: {at(PROGRAM)}; remedy: "
    ):
        node().install()
    assert files() == sorted([OWNER, PROGRAM])


# --- Files of others


def test_files_of_others_are_left_alone() -> None:
    """A package that is there already; a program without an owner;
    a package that was put over the chart's files.
    """
    hook_file = {
        "version": "1.0.0",
        "hook": {"path": PROGRAM},
        "when": {"always": True},
        "stages": ["poststop"],
    }
    at(JSON).write_text(json.dumps(hook_file))
    with pytest.raises(Refused, match="was installed by other means"):
        node().install()
    assert node().remove_json() == []
    assert files() == [JSON]
    at(JSON).unlink()
    at(PROGRAM).write_text("theirs")
    with pytest.raises(Refused, match=r"hook\.pyz is not the chart's"):
        node().install()
    assert node().remove_program() == []
    assert at(PROGRAM).read_text() == "theirs"
    at(PROGRAM).unlink()
    node().install()
    at(OWNER).write_text("deb\n")
    assert not node().is_installed()
    with pytest.raises(Refused, match="was installed by other means"):
        node().install()
    assert node().remove_json() == node().remove_program() == []


# --- The end, and other releases

FAR = "/etc/containers/oci/hooks.d"
BOOT = "/etc/tmpfiles.d/resctrl-mon-hook-stub-usr.conf"
A, SAME, B = (("shop/hook", HOOKS_DIR), ("shop/hook", FAR), ("shop/other", FAR))


def of(release: tuple[str, str], before: float = math.inf) -> host.Host:
    """A release: its name and its hooksDir."""
    return host.Host(PREFIX, release[1], (), release[0], before)


def json_of(release: tuple[str, str]) -> Path:
    return at(f"{release[1]}/{os.path.basename(JSON)}")


def test_a_removal_leaves_a_stub_that_the_next_boot_removes(shipped: bytes) -> None:
    node().install()
    assert node().remove_json() == [f"remove {at(JSON)}"]
    assert files() == [OWNER, PROGRAM]
    assert node().remove_json() == []
    assert at(PROGRAM).read_bytes() == shipped
    assert node().remove_program() == [
        f"stub {at(PROGRAM)}",
        f"write {at(BOOT)}",
        f"remove {at(OWNER)}",
    ]
    assert files() == [PROGRAM]
    assert (at(PROGRAM).read_text(), at(PROGRAM).stat().st_mode & 0o7777) == (
        "#!/bin/true\n",
        0o755,
    )
    assert at(BOOT).read_text().splitlines() == [f"r! {PROGRAM}", f"r! {BOOT}"]
    assert node().remove_program() == []
    assert node().install() == [
        f"write {at(OWNER)}",
        f"remove {at(BOOT)}",
        f"write {at(PROGRAM)}",
        f"write {at(JSON)}",
    ]
    assert node().is_installed()


def test_a_removal_ends_all_keys_and_tries_again_if_one_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [Remains(["key k: busy"], []), Remains([], ["/x: cannot be read"])]
    monkeypatch.setattr(host, "end_all_keys", lambda _options: answers.pop(0))
    node().install()
    assert node().remove_program() == [], "its JSON is there, so it was installed again"
    node().remove_json()
    with pytest.raises(Refused, match="key k: busy"):
        node().remove_program()
    assert not is_stub(str(at(PROGRAM)))
    assert node().remove_program()[0] == "left: /x: cannot be read"
    assert is_stub(str(at(PROGRAM)))


def test_a_release_that_moves_its_hooks_dir_is_refused_with_the_value_and_nothing_changes() -> None:
    of(A).install()
    before = files()
    with pytest.raises(
        Refused, match=f"installed with hooksDir={HOOKS_DIR}: set that, or helm uninstall first"
    ):
        of(SAME).install()
    with pytest.raises(
        Refused,
        match="the Helm release shop/hook has installed the hook: helm uninstall that first",
    ):
        of(B).install()
    with pytest.raises(
        Refused, match="if this release did that: set prefix=/usr, or helm uninstall first"
    ):
        host.Host("/usr/local", HOOKS_DIR, (), "shop/hook").install()
    assert files() == before
    assert of(A).is_installed()


def test_a_late_job_leaves_alone_what_was_installed_since_under_the_same_name() -> None:
    of(A).install()
    os.utime(at(OWNER), (1, 1))
    assert of(A).install() == []
    began = at(OWNER).stat().st_mtime + 1
    assert began > 2, "the start of a pod is noted also where nothing changes"
    os.utime(at(OWNER), (began + 1, began + 1))
    assert of(A, began).remove_json() == of(A, began).remove_program() == []
    assert of(A).is_installed()
    os.utime(at(OWNER), (began - 1, began - 1))
    assert of(A, began).remove_json() != []


STEPS: dict[str, tuple[tuple[str, str], str]] = {
    f"{verb} of {number}": (release, verb)
    for number, release in enumerate((A, SAME, B), 1)
    for verb in ("install", "remove_json", "remove_program")
}


@pytest.mark.parametrize("seed", range(4))
def test_in_no_order_of_releases_and_jobs_is_a_program_missing_that_a_json_or_a_container_names(
    seed: int,
) -> None:
    """Containers take the program's path from each JSON that is there,
    and live to the end of the test.
    """
    at(FAR).mkdir(parents=True)
    random = Random(seed)
    paths: set[str] = set()
    done: list[str] = []
    for _ in range(30):
        name = random.choice(sorted(STEPS))
        release, verb = STEPS[name]
        done.append(name)
        with suppress(Refused):
            getattr(of(release), verb)()
        files = {item: hooksd.read_entry(str(json_of(item))).file for item in (A, SAME, B)}
        paths |= {file.hook.path for file in files.values() if file is not None}
        assert not [path for path in paths if not os.access(at(path), os.X_OK)], done
        assert len({item[1] for item, file in files.items() if file is not None}) <= 1, (
            f"two JSONs: {done}"
        )
        if any(file is not None for file in files.values()) and verb == "install":
            assert not is_stub(str(at(PROGRAM))), done
        assert not (is_stub(str(at(PROGRAM))) and any(files.values())), done
    for release in (A, SAME, B):
        with suppress(Refused):
            of(release).remove_json()
        of(release).remove_program()
    assert is_stub(str(at(PROGRAM))) is (PROGRAM in paths)
    assert [json_of(item).exists() for item in (A, SAME, B)] == [False] * 3


@pytest.mark.parametrize(
    "file", ["10-resctrl-mon-hook-kubernetes.json", "10-resctrl-mon-hook-podman.json"]
)
def test_a_removal_leaves_another_owners_json_and_keys_in_the_same_hooks_dir(
    monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """As `install --prefix=/usr/local --force` puts it there,
    whose owner has no file beside the chart's program.
    """
    node().install()
    other = "/usr/local/libexec/oci/hooks.d/resctrl-mon-hook.pyz"
    theirs = at(f"{HOOKS_DIR}/{file}")
    theirs.write_text(at(JSON).read_text().replace(PROGRAM, other))
    if theirs == at(JSON):
        assert node().remove_json() == [
            f"left: {theirs} calls {other}: it belongs to another installation"
        ]
    else:
        assert node().remove_json() == [f"remove {at(JSON)}"]
    monkeypatch.setattr(
        host, "end_all_keys", lambda _options: pytest.fail("they are of the other one's containers")
    )
    assert node().remove_program()[:2] == [
        f"left: all keys: {theirs} calls {other}: another installation",
        f"stub {at(PROGRAM)}",
    ]
    assert theirs.exists()
    assert not at(OWNER).exists()


@pytest.mark.parametrize("held", [os.path.dirname(PROGRAM), HOOKS_DIR])
def test_nothing_is_done_while_another_one_holds_the_lock_of_either_directory(
    monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    of(A).install()
    inode = at(held).stat().st_ino
    monkeypatch.setattr(
        system, "try_flock", lambda descriptor: os.fstat(descriptor).st_ino != inode
    )
    for act in (of(A).install, of(A).remove_json, of(A).remove_program):
        with pytest.raises(Refused, match=f"another install or uninstall is running in {at(held)}"):
            act()
    assert of(A).is_installed()
