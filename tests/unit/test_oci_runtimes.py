# SPDX-License-Identifier: Apache-2.0
"""What is made of the answers of OCI runtimes: those here are shell scripts, the real ones are in the Podman tier."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hook.base import procfs
from hook.base.models import State
from hook.node import oci_runtimes, programs
from hook.node.oci_runtimes import Runtime, list_states

PID = 4711
ID = 64 * "c"
SANDBOX = "io.kubernetes.cri.container-type"
# Notes the question, and gives the answer that lies ready for it
ANSWERS = """\
#!/bin/sh
cd "${0%/*}/$(basename "$0").d" || exit 9
echo "$1 $3 $4" >>asked
[ "$3" != list ] || exec cat list
exec cat "state-$4"
"""


def state(container: str = "web", **changes: object) -> dict[str, Any]:
    """A state as runc prints it; None takes a field away."""
    whole = {
        "ociVersion": "1.0.2-dev",
        "id": container,
        "pid": PID,
        "status": "running",
        "bundle": f"/bundles/{container}",
        "annotations": {"a": "b"},
        **changes,
    }
    return {name: value for name, value in whole.items() if value is not None}


def listed_by_crun(whole: dict[str, Any]) -> dict[str, Any]:
    """What crun's list has of a state."""
    return {name: value for name, value in whole.items() if name not in ("ociVersion", "annotations")}


class NodeWithRuntimes:
    """A machine with one root directory and as many fake runtimes as are made."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / "root"
        self.root.mkdir()

    def container(self, name: str, file: str = "state.json", root: Path | None = None) -> None:
        """Let a container be in the root directory."""
        directory = (root or self.root) / name
        directory.mkdir(parents=True)
        (directory / file).touch()

    def script(self, text: str, name: str = "runc") -> Runtime:
        program = self.directory / name
        program.write_text(text)
        program.chmod(0o755)
        return Runtime(str(program), str(self.root))

    def runtime(self, entries: object, *answers: dict[str, Any], name: str = "runc") -> Runtime:
        """A runtime whose list is this, and that tells these states."""
        directory = self.directory / f"{name}.d"
        directory.mkdir()
        (directory / "list").write_text(entries if isinstance(entries, str) else json.dumps(entries))
        for answer in answers:
            (directory / f"state-{answer['id']}").write_text(json.dumps(answer))
        return self.script(ANSWERS, name)

    def asked(self, name: str = "runc") -> list[str]:
        file = self.directory / f"{name}.d" / "asked"
        return [line.removeprefix("--root ") for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def node(tmp_path: Path) -> NodeWithRuntimes:
    return NodeWithRuntimes(tmp_path)


def test_runc_gives_whole_states_in_its_list(node: NodeWithRuntimes) -> None:
    node.container("web")
    node.container("db")
    both = [state("web"), state("db", status="created")]
    assert list_states([node.runtime(both)]) == (both, [])
    assert node.asked() == ["list --format"]


def test_crun_is_asked_for_the_annotations(node: NodeWithRuntimes) -> None:
    node.container("web", "status")
    whole = state(rootfs="/rootfs")
    assert list_states([node.runtime([listed_by_crun(whole)], whole)]) == ([whole], [])
    assert node.asked() == ["list --format", "state web"]


def test_runtimes_are_called_with_root_and_a_fixed_path(node: NodeWithRuntimes) -> None:
    node.container("web")
    program = node.script(f'#!/bin/sh\necho "$@" >>{node.directory}/words\nenv >{node.directory}/env\nexit 1\n')
    list_states([program])
    words = (node.directory / "words").read_text().splitlines()
    assert words == [f"--root {node.root} list --format json", f"--root {node.root} state web"]
    assert "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n" in (node.directory / "env").read_text()


def test_environment_is_empty_and_so_is_stdin(node: NodeWithRuntimes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere")
    node.container("web")
    text = json.dumps([state()])
    program = node.script(f'#!/bin/sh\n[ -z "$XDG_RUNTIME_DIR" ] && [ -z "$(cat)" ] && echo \'{text}\'\n')
    assert list_states([program]) == ([state()], [])


@pytest.mark.parametrize("status", ["created", "running", "paused"])
def test_a_live_container_is_listed(node: NodeWithRuntimes, status: str) -> None:
    node.container("web")
    assert list_states([node.runtime([state(status=status)])]) == ([state(status=status)], [])


@pytest.mark.parametrize(
    "changes",
    [{"status": "stopped", "pid": 0}, {"status": "stopped"}, {"status": "creating"}, {"pid": 0}, {"pid": None}],
)
def test_a_container_that_is_not_live_is_left_out(node: NodeWithRuntimes, changes: dict[str, Any]) -> None:
    node.container("web")
    node.container("db", "status")
    whole = state("db", **changes)
    assert list_states([node.runtime([state(**changes), listed_by_crun(whole)], whole)]) == ([], [])


def test_a_container_that_stopped_after_the_list_is_left_out(node: NodeWithRuntimes) -> None:
    node.container("web", "status")
    program = node.runtime([listed_by_crun(state())], state(status="stopped", pid=0))
    assert list_states([program]) == ([], [])


@pytest.mark.parametrize("empty", ["null", "[]", "[\n\n]\n"])
def test_an_empty_list_is_no_problem(node: NodeWithRuntimes, empty: str) -> None:
    """A directory without a state file is what an interrupted create or delete left."""
    (node.root / "leftover").mkdir()
    assert list_states([node.runtime(empty)]) == ([], [])


def test_a_missing_root_is_not_asked(node: NodeWithRuntimes) -> None:
    """runc and crun would make it."""
    program = node.runtime([state()])
    assert list_states([Runtime(program.path, str(node.directory / "none"))]) == ([], [])
    assert node.asked() == []


def test_an_empty_root_is_not_asked(node: NodeWithRuntimes) -> None:
    (node.root / ".cache").mkdir()
    assert list_states([node.runtime([])]) == ([], [])
    assert node.asked() == []


def test_an_unreadable_root_is_reported(node: NodeWithRuntimes) -> None:
    (node.directory / "file").touch()
    found, (line,) = list_states([Runtime(node.runtime([]).path, str(node.directory / "file"))])
    assert found == []
    assert line == f"cannot read {node.directory}/file: ENOTDIR"


# --- Sandboxes


@pytest.mark.parametrize(
    "annotations",
    [
        {"io.kubernetes.cri-o.ContainerType": "sandbox", "io.container.manager": "cri-o"},
        {"io.kubernetes.cri-o.ContainerType": "sandbox", "io.container.manager": "cri-o", SANDBOX: "container"},
        {"io.kubernetes.cri-o.ContainerType": "sandbox"},
        {SANDBOX: "sandbox"},
        {SANDBOX: "sandbox", "io.kubernetes.cri-o.ContainerType": "container"},
    ],
)
def test_sandboxes_are_left_out(node: NodeWithRuntimes, annotations: dict[str, str]) -> None:
    node.container("pause")
    assert list_states([node.runtime([state("pause", annotations=annotations)])]) == ([], [])


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {"io.kubernetes.cri-o.ContainerType": "container", "io.container.manager": "cri-o"},
        {SANDBOX: "container"},
        # by a pod's author, to whom it would be a way not to be monitored: CRI-O passes on what is containerd's
        {"io.kubernetes.cri-o.ContainerType": "container", "io.container.manager": "cri-o", SANDBOX: "sandbox"},
        {SANDBOX: "container", "io.kubernetes.cri-o.ContainerType": "sandbox"},
    ],
)
def test_containers_of_pods_are_listed(node: NodeWithRuntimes, annotations: dict[str, str]) -> None:
    node.container("web")
    whole = state(annotations=annotations)
    assert list_states([node.runtime([whole])]) == ([whole], [])


# --- Several runtimes, several roots


def test_a_root_shared_by_runc_and_crun_is_asked_of_both(node: NodeWithRuntimes) -> None:
    """As containerd's is. Neither tells of the other's containers, and that is nothing to complain of."""
    node.container("web")
    node.container("db", "status")
    whole = state("db")
    pair = [node.runtime([state()]), node.runtime([listed_by_crun(whole)], whole, name="crun")]
    assert list_states(pair) == ([state(), whole], [])
    assert node.asked() == ["list --format"]
    assert node.asked("crun") == ["list --format", "state db"]


def test_no_further_runtime_is_asked_when_all_is_known(node: NodeWithRuntimes) -> None:
    node.container("web")
    assert list_states([node.runtime([state()]), node.runtime([], name="crun")]) == ([state()], [])
    assert node.asked("crun") == []


def test_an_id_in_two_roots_is_listed_once(node: NodeWithRuntimes) -> None:
    node.container("web")
    node.container("web", root=node.directory / "other")
    first = node.runtime([state()])
    second = node.runtime([state(pid=PID + 1)], name="again")
    assert list_states([first, Runtime(second.path, str(node.directory / "other"))]) == ([state()], [])


def test_an_id_stopped_in_one_root_and_running_in_another_is_listed(node: NodeWithRuntimes) -> None:
    node.container("web")
    node.container("web", root=node.directory / "other")
    first = node.runtime([state(status="stopped", pid=0)])
    second = node.runtime([state()], name="again")
    assert list_states([first, Runtime(second.path, str(node.directory / "other"))]) == ([state()], [])


def test_a_broken_runtime_loses_only_its_own_containers(node: NodeWithRuntimes) -> None:
    node.container("web")
    node.container("db", root=node.directory / "other")
    good = node.runtime([state("db")], name="good")
    found, lines = list_states(
        [node.script("#!/bin/sh\nexit 3\n", "bad"), Runtime(good.path, str(node.directory / "other"))]
    )
    assert found == [state("db")]
    assert [line.partition(": ")[2] for line in lines] == ["exit status 3: no error message"] * 2


def test_the_next_runtime_answers_for_a_broken_one(node: NodeWithRuntimes) -> None:
    """Only the failed list is told: each of its containers was told of in the end."""
    node.container("web")
    bad = node.script("#!/bin/sh\necho 'first line' >&2; echo 'cannot\trun' >&2; exit 1\n", "bad")
    found, lines = list_states([bad, node.runtime([state()])])
    assert found == [state()]
    assert lines == [f"{bad.path} --root {node.root} list --format json: exit status 1: cannot?run"]


def test_a_container_missing_in_a_list_is_asked_for_alone(node: NodeWithRuntimes) -> None:
    """crun's, without CAP_KILL or at a broken container: it prints what it has, and status 0."""
    node.container("web", "status")
    assert list_states([node.runtime([], state())]) == ([state()], [])


# --- Answers that are none


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("", "not JSON: no value at character 0"),
        ("{", "Expecting property name"),
        ("runc: command not found", "not JSON"),
        ('{"id": "web"}', "not a JSON list"),
        ('"web"', "not a JSON list"),
        ("7", "not a JSON list"),
        ("[" * 100_000, "nested too deeply"),
        ('["web", 7, null, {}, {"id": 7, "status": "running"}, {"id": "web"}]', "6 entries are not containers"),
        ('[{"id": "web", "status": "running", "pid": ' + "9" * 500 + "}]", "a number of 500 characters"),
    ],
)
def test_an_invalid_list_is_reported(node: NodeWithRuntimes, answer: str, told: str) -> None:
    """Each container is asked about by itself then."""
    node.container("web")
    found, (line,) = list_states([node.runtime(answer, state())])
    assert found == [state()]
    assert told in line
    assert line.startswith(f"{node.directory}/runc --root {node.root} list --format json: ")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("null", "all of it"),
        ("[]", "all of it"),
        ("nonsense", "not JSON"),
        (json.dumps(state(pid="1")), "pid"),
        (json.dumps(state(pid=-1)), "pid"),
        (json.dumps(state(pid=True)), "pid"),
        (json.dumps(state(pid=2**31)), "pid"),
        (json.dumps(state(status=["running"])), "status"),
        (json.dumps(state(bundle=7)), "bundle"),
        (json.dumps(state(annotations={"a": 7})), "annotations"),
        (json.dumps(state(annotations=["a"])), "annotations"),
        (json.dumps(state(ociVersion=None)), "ociVersion"),
        (json.dumps(state("other")), "the state of 'other'"),
    ],
)
@pytest.mark.parametrize("whole", [False, True], ids=["state", "list"])
def test_an_invalid_state_is_reported(node: NodeWithRuntimes, answer: str, told: str, whole: bool) -> None:
    node.container("web", "status")
    program = node.runtime([listed_by_crun(state())])
    (node.directory / "runc.d" / "state-web").write_text(answer)
    if whole:
        (node.directory / "runc.d" / "list").write_text(f"[{answer}]")
    found, lines = list_states([program])
    assert found == []
    assert told in lines[-1]
    assert "web" in lines[-1]


def test_list_entries_of_unknown_containers_are_ignored(node: NodeWithRuntimes) -> None:
    node.container("web")
    entries = [state("../../etc"), state("-rf"), state(""), state("a" * 300), state("new"), state()]
    assert list_states([node.runtime(entries)]) == ([state()], [])
    assert node.asked() == ["list --format"]


def test_invalid_utf8_is_replaced(node: NodeWithRuntimes) -> None:
    node.container("web")
    program = node.runtime(json.dumps([state(annotations={"a": "X"})]))
    path = node.directory / "runc.d" / "list"
    path.write_bytes(path.read_bytes().replace(b"X", b"\xff"))
    ((found,), lines) = list_states([program])
    assert found["annotations"] == {"a": "\ufffd"}
    assert lines == []


@pytest.mark.parametrize("text", ["#!/nowhere\n", "", "#!/bin/sh\nkill -9 $$\n"])
def test_a_runtime_that_does_not_start_is_reported(node: NodeWithRuntimes, text: str) -> None:
    node.container("web")
    found, lines = list_states([node.script(text)])
    assert found == []
    assert len(lines) == 2
    assert all("cannot start: E" in line or "exit status -9" in line for line in lines)


def test_a_missing_runtime_is_reported(node: NodeWithRuntimes) -> None:
    node.container("web")
    found, lines = list_states([Runtime("/nowhere/runc", str(node.root))])
    assert found == []
    assert [line.rpartition(": ")[2] for line in lines] == ["ENOENT", "ENOENT"]


def test_output_without_end_is_cut_off(node: NodeWithRuntimes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_LONGEST_OUTPUT", 1 << 20)
    node.container("web")
    program = node.script('#!/bin/sh\n[ "$3" = state ] && exit 1\nexec yes\n')
    found, lines = list_states([program])
    assert found == []
    assert "more than 1 MiB" in lines[0]


def test_long_stderr_is_shortened(node: NodeWithRuntimes) -> None:
    node.container("web")
    text = json.dumps([state()])
    chatter = "head -c 3000000 /dev/zero >&2"
    assert list_states([node.script(f"#!/bin/sh\n{chatter}\necho '{text}'\n")]) == ([state()], [])
    _, lines = list_states([node.script(f"#!/bin/sh\n{chatter}\nexit 1\n", "failing")])
    assert all(len(line) < 500 for line in lines)


# --- Time


HANGS = 3600
"""Seconds for which a runtime hangs here."""
DEADLINE = 300.0
"""Seconds: a machine may be busy."""


@pytest.mark.parametrize(
    "text",
    [
        f"exec sleep {HANGS}",
        f"sleep {HANGS}",  # its child holds the pipe
        f"exec sleep {HANGS} >&- 2>&-",
        "trap '' TERM HUP INT; echo '['; while :; do sleep 1; done",
        f"sleep {HANGS} & echo '[]'",  # the answer is there, but who knows whether it is all
        "while :; do echo >&2; done",
    ],
)
def test_a_runtime_that_hangs_is_killed_with_its_children(
    node: NodeWithRuntimes, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(oci_runtimes, "_PATIENCE", 1.0)
    node.container("web")
    sleeper = f"#!/bin/sh\n[ $3 = list ] || exit 1\necho $$ >{node.directory}/pid\n{text}\n"
    began = time.monotonic()
    found, lines = list_states([node.script(sleeper)])
    assert time.monotonic() - began < DEADLINE
    assert found == []
    assert lines[0].endswith("list --format json: timed out after 1 s")
    group = int((node.directory / "pid").read_text())
    while members_of(group):  # what is killed takes its time to go
        assert time.monotonic() - began < DEADLINE, members_of(group)


def members_of(group: int) -> list[str]:
    """The processes of a process group that are not dead."""
    fields = {path.parent.name: stat_of(path) for path in Path("/proc").glob("[0-9]*/stat")}
    return [pid for pid, it in fields.items() if len(it) > 2 and it[2] == str(group) and it[0] not in "ZX"]


def stat_of(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def test_a_runtime_that_hangs_leaves_time_for_others(node: NodeWithRuntimes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci_runtimes, "_PATIENCE", 0.2)
    monkeypatch.setattr(oci_runtimes, "_PATIENCE_IN_ALL", 0.5)
    for number in range(20):
        node.container(f"web{number:02}")
    calls = node.directory / "calls"
    calls.touch()  # on a busy machine a shell takes longer to start than it has
    program = node.script(f"#!/bin/sh\necho >>{calls}\nexec sleep {HANGS}\n")
    began = time.monotonic()
    found, lines = list_states([program])
    assert time.monotonic() - began < DEADLINE
    assert found == []
    assert len(calls.read_text().splitlines()) <= 4
    assert lines[0].endswith("timed out after 0.2 s")
    assert lines[-2].endswith("skipped: the time limit was used up by other runtimes")
    assert lines[-1] == f"{node.root}: the same problem with 10 more containers"


def test_no_descriptor_stays_open(node: NodeWithRuntimes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci_runtimes, "_PATIENCE", 0.2)
    node.container("web")
    before = len(os.listdir("/proc/self/fd"))
    list_states(
        [node.runtime([state()]), node.script("#!/bin/sh\nsleep 60\n", "late"), Runtime("/nowhere", str(node.root))]
    )
    assert len(os.listdir("/proc/self/fd")) == before


# --- What vanishes, and what stays untold


def test_a_container_that_vanishes_after_the_list_is_no_problem(node: NodeWithRuntimes) -> None:
    node.container("web", "status")
    node.container("db", "status")
    whole = state("db")
    (node.directory / "runc.d").mkdir()
    (node.directory / "runc.d" / "list").write_text(json.dumps([listed_by_crun(state()), listed_by_crun(whole)]))
    (node.directory / "runc.d" / "state-db").write_text(json.dumps(whole))
    program = node.script(ANSWERS.replace('exec cat "state', f'rm -rf {node.root}/web; exec cat "state'))
    assert list_states([program]) == ([whole], [])


def test_a_container_without_a_readable_state_is_reported(node: NodeWithRuntimes) -> None:
    node.container("web", "status")
    found, (line,) = list_states([node.runtime([listed_by_crun(state())])])
    assert found == []
    assert line.startswith(f"{node.directory}/runc --root {node.root} state web: exit status 1: cat: ")


def test_containers_without_any_runtime_are_reported(node: NodeWithRuntimes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci_runtimes, "_ROOTS", {str(node.root): ("runc", "crun")})
    monkeypatch.setattr(oci_runtimes, "_DIRECTORIES", (str(node.directory / "bin"),))
    assert list_states() == ([], [])
    node.container("web")
    node.container("db", "status")
    assert list_states() == ([], [f"{node.root}: found no runtime to ask for the state of 2 containers"])


# --- What is installed


def test_every_installed_runtime_is_asked_for_every_root(
    node: NodeWithRuntimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [node.directory / "runc-root", node.directory / "crun-root", node.directory / "none"]
    order = [("runc", "crun"), ("crun", "runc"), ("runc",)]
    monkeypatch.setattr(oci_runtimes, "_ROOTS", {str(root): names for root, names in zip(roots, order)})
    places = [node.directory / name for name in ("sbin", "bin", "crio")]
    monkeypatch.setattr(oci_runtimes, "_DIRECTORIES", tuple(str(place) for place in places))
    for place in places:
        place.mkdir()
    node.container("web", root=roots[0])
    node.container("db", "status", root=roots[1])
    node.runtime([state()], name="sbin/runc")
    (places[1] / "runc").symlink_to(places[0] / "runc")
    (places[1] / "crun").touch(mode=0o644)  # is no program
    whole = state("db")
    node.runtime([listed_by_crun(whole)], whole, name="crio/crun")
    assert list_states() == ([state(), whole], [])
    assert node.asked("sbin/runc") == ["list --format"]
    assert node.asked("crio/crun") == ["list --format", "state db"]
    assert not roots[2].exists()


def test_the_known_roots_are_searched() -> None:
    """Measured, or in the sources of who makes them: see the comments there."""
    assert {"/run/runc", "/run/crun", "/run/containerd/runc/k8s.io", "/run/containerd/runc/default"} <= set(
        oci_runtimes._ROOTS
    )
    assert all(os.path.isabs(path) for path in (*oci_runtimes._ROOTS, *oci_runtimes._DIRECTORIES))


def test_only_the_given_containers_are_asked_for(node: NodeWithRuntimes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their status, sandboxes too; what no runtime has is another tool's, or gone."""
    for name in ("web", "pause", "mute", "other"):
        node.container(name)
    answers = [state("web", status="created"), state("pause", annotations={SANDBOX: "sandbox"})]
    program = node.runtime([], *answers)
    monkeypatch.setattr(oci_runtimes, "_ROOTS", {str(node.root): ("runc",), "/nowhere": ("runc",)})
    monkeypatch.setattr(oci_runtimes, "_find_programs", lambda _name: [program.path])
    found, untold = oci_runtimes.find_states(["web", "pause", "mute", "docker", "../x"])
    assert [found["web"], found["pause"]] == answers
    assert untold == {"mute"}
    assert sorted(node.asked()) == ["state mute", "state pause", "state web"]
    assert oci_runtimes.has_roots()


def test_a_machine_without_roots_has_no_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci_runtimes, "_ROOTS", {"/nowhere": ("runc",)})
    assert not oci_runtimes.has_roots()
    assert oci_runtimes.find_states(["web"]) == ({}, set())


@pytest.mark.parametrize(
    ("place", "of_its_runtime", "of_the_other"),
    [
        (f":/kubepods/podx/{ID}", "io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"),
        (f":/kubepods/podx/crio-{ID}", "io.kubernetes.cri-o.ContainerType", "io.kubernetes.cri.container-type"),
    ],
)
@pytest.mark.parametrize("manager", ["cri-o", "libpod", None])
def test_a_pods_author_cannot_make_a_container_a_sandbox(
    monkeypatch: pytest.MonkeyPatch, place: str, of_its_runtime: str, of_the_other: str, manager: str | None
) -> None:
    monkeypatch.setattr(procfs, "cgroups", lambda _pid: [place])
    claims = {of_the_other: "sandbox", **({"io.container.manager": manager} if manager else {})}

    def says(kind: str) -> bool:
        annotations = {**claims, of_its_runtime: kind}
        state = {
            "ociVersion": "1.0",
            "id": ID,
            "status": "running",
            "pid": 7,
            "bundle": "/",
            "annotations": annotations,
        }
        return oci_runtimes.is_sandbox(State.model_validate(state))

    assert not says("container")
    assert says("sandbox")
