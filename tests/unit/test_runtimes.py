# SPDX-License-Identifier: Apache-2.0
"""The answers of OCI runtimes, and what becomes of them.

Those here are scripts; the real ones are in tests/podman.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook import system
from hook.models import State
from hook.node import runtimes
from hook.node.runtimes import Runtimes

PID = 4711
ID = 64 * "c"
SANDBOX = "io.kubernetes.cri.container-type"
OF_CRIO = "io.kubernetes.cri-o.ContainerType"
# Notes the question, and prints the file of the answer
ANSWERS = """\
#!/bin/sh
cd "${0%/*}/$(basename "$0").d" || exit 9
echo "$1 $3 $4" >>asked
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


def shown(state: State) -> dict[str, Any]:
    """A state that was read, as a runtime prints it."""
    fields = state.model_dump()
    return {"ociVersion": fields.pop("oci_version"), **fields}


class NodeWithRuntimes:
    """A machine with one root directory and as many fake runtimes as are made."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / "root"
        self.root.mkdir()

    def container(self, *names: str, file: str = "state.json", root: Path | None = None) -> None:
        """Let containers be in the root directory."""
        for name in names:
            directory = (root or self.root) / name
            directory.mkdir(parents=True)
            (directory / file).touch()

    def script(self, text: str, name: str = "runc") -> str:
        program = self.directory / name
        program.write_text(text)
        program.chmod(0o755)
        return str(program)

    def runtime(self, *answers: dict[str, Any], name: str = "runc") -> str:
        """A runtime that knows these states."""
        directory = self.directory / f"{name}.d"
        directory.mkdir()
        for answer in answers:
            (directory / f"state-{answer['id']}").write_text(json.dumps(answer))
        return self.script(ANSWERS, name)

    def asked(self, name: str = "runc") -> list[str]:
        """About which containers a runtime was asked."""
        file = self.directory / f"{name}.d" / "asked"
        lines = file.read_text().splitlines() if file.exists() else []
        assert all(line.startswith("--root state ") for line in lines)
        return [line.split()[-1] for line in lines]

    def list_states(
        self,
        *paths: str,
        roots: tuple[Path, ...] = (),
        **how: Any,  # noqa: ANN401
    ) -> tuple[list[Any], list[str]]:
        """The states of live containers by these programs and root
        directories, and the problems.
        """
        states, problems = Runtimes(
            [str(root) for root in roots or (self.root,)], paths
        ).list_states(**how)
        return [shown(answer) for answer in runtimes.list_adoptable(states)], [*problems.values()]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeWithRuntimes:
    monkeypatch.setattr(system, "boottime", lambda: 0.0)  # which container is the first
    return NodeWithRuntimes(tmp_path)


def test_each_container_of_a_root_is_asked_about(node: NodeWithRuntimes) -> None:
    node.container("web", "known")
    node.container("db", file="status")
    (node.root / "leftover").mkdir()  # of an interrupted create or delete
    both = [state("db", status="created"), state("web")]
    assert node.list_states(node.runtime(*both), known={"known"}) == (both, [])
    assert node.asked() == ["db", "web"]


def test_live_containers_that_are_no_sandboxes_are_listed(
    node: NodeWithRuntimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "cgroups", lambda _pid: [":/kubepods/podx/crio-web"])
    node.container("web")
    program = node.runtime()
    live = [state(status=status) for status in ("created", "running", "paused")]
    others: list[dict[str, Any]] = [
        {"status": "stopped", "pid": 0},
        {"status": "stopped"},
        {"status": "creating"},
        {"pid": 0},
        {"pid": None},
        {"annotations": {OF_CRIO: "sandbox"}},
        {"status": "stopped", "annotations": {OF_CRIO: "sandbox", "io.container.manager": "cri-o"}},
    ]
    for answer in (*live, *(state(**changes) for changes in others)):
        (node.directory / "runc.d/state-web").write_text(json.dumps(answer))
        assert node.list_states(program) == ([answer] if answer in live else [], [])


def test_a_missing_root_is_not_asked_and_an_unreadable_one_is_reported(
    node: NodeWithRuntimes,
) -> None:
    """runc and crun would make a missing one."""
    (node.directory / "file").touch()
    roots = (node.directory / "none", node.directory / "file")
    assert node.list_states(node.runtime(), roots=roots) == (
        [],
        [f"cannot read {node.directory}/file: ENOTDIR"],
    )
    assert not (node.directory / "none").exists()
    assert node.asked() == []


# --- Several runtimes, several roots


def test_a_root_shared_by_runc_and_crun_is_asked_of_both(node: NodeWithRuntimes) -> None:
    """As containerd's is: each is asked first about its own containers,
    and that no other knows them is no problem.
    """
    node.container("web", "odd")
    node.container("db", file="status")
    states = [state("db"), state("odd"), state("web")]
    pair = [node.runtime(state("web")), node.runtime(state("db"), state("odd"), name="crun")]
    assert node.list_states(*pair) == (states, [])
    assert node.asked() == ["odd", "web"]
    assert node.asked("crun") == ["db", "odd"]


def test_an_id_in_two_roots_is_listed_once_and_if_it_runs_in_either(node: NodeWithRuntimes) -> None:
    roots = (node.root, node.directory / "other")
    for root in roots:
        node.container("web", root=root)
    program, second = node.script('#!/bin/sh\nexec cat "$2/$4/answer"\n'), state(pid=PID + 1)
    (roots[1] / "web/answer").write_text(json.dumps(second))
    for first in (state(), state(status="stopped", pid=0)):
        (roots[0] / "web/answer").write_text(json.dumps(first))
        assert node.list_states(program, roots=roots) == ([first if first["pid"] else second], [])


def test_a_broken_runtime_loses_only_its_own_containers(node: NodeWithRuntimes) -> None:
    node.container("web", "db")
    bad = node.script("#!/bin/sh\necho 'first line' >&2; echo 'cannot\trun' >&2; exit 1\n", "bad")
    states, (line,) = node.list_states(node.runtime(state("db")), bad)
    assert states == [state("db")]
    assert line == f"{bad} --root {node.root} state web: exit status 1: cannot?run"
    assert node.list_states(bad, node.runtime(state("db"), state("web"), name="crun"))[1] == [], (
        "the next one answers"
    )


# --- Answers that are none


def test_an_invalid_state_is_reported(node: NodeWithRuntimes) -> None:
    node.container("web")
    program = node.runtime()
    for answer, problem in (
        ("", "not JSON: no value at character 0"),
        ("{", "Expecting property name"),
        ("null", "all of it"),
        ("[]", "all of it"),
        (json.dumps(state(ociVersion=None)), "ociVersion"),
        (json.dumps(state("other")), "gave the state of 'other'"),
    ):
        (node.directory / "runc.d/state-web").write_text(answer)
        states, (line,) = node.list_states(program)
        assert states == []
        assert line.startswith(f"{program} --root {node.root} state web: ")
        assert problem in line
        assert "\n" not in line


def test_what_is_no_id_is_not_asked_about(node: NodeWithRuntimes) -> None:
    node.container("-rf", "a" * 201, "a b")
    assert node.list_states(node.runtime()) == ([], [])
    assert node.asked() == []


def test_a_runtime_that_hangs_leaves_time_for_others(
    node: NodeWithRuntimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "_PATIENCE", 0.5)
    monkeypatch.setattr(runtimes, "_PATIENCE_IN_ALL", 1.5)
    node.container(*(f"web{number:02}" for number in range(20)))
    calls = node.directory / "calls"
    calls.touch()  # on a busy machine a shell takes longer to start than it has
    states, lines = node.list_states(node.script(f"#!/bin/sh\necho >>{calls}\nexec sleep 3600\n"))
    assert states == []
    assert len(calls.read_text().splitlines()) <= 4
    assert lines[0].endswith("timed out after 0.5 s")
    assert lines[-1].endswith("skipped: the time limit was used up by other runtimes")
    assert len(lines) == 20


def test_each_call_begins_with_another_container_so_that_none_is_always_too_late(
    node: NodeWithRuntimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.container("db", "odd", "web")
    program = node.runtime(state("db"), state("odd"), state("web"))
    first = set()
    for milliseconds in range(3):
        monkeypatch.setattr(system, "boottime", lambda now=milliseconds: now / 1000)
        before = len(node.asked())
        assert node.list_states(program) == ([state("db"), state("odd"), state("web")], [])
        first.add(node.asked()[before])
    assert first == {"db", "odd", "web"}


def test_a_container_that_vanishes_meanwhile_is_no_problem(node: NodeWithRuntimes) -> None:
    node.container("web", "db")
    program = node.runtime(state("db"))
    node.script(ANSWERS.replace("exec cat", f"rm -rf {node.root}/web; exec cat"))
    assert node.list_states(program, program) == ([state("db")], [])
    assert node.asked() == ["db"]


# --- What is installed


def test_without_any_runtime_containers_are_reported(node: NodeWithRuntimes) -> None:
    assert node.list_states() == ([], [])
    node.container("web", "db")
    lines = [
        f"{node.root}: found no runtime to ask for the state of {name}" for name in ("db", "web")
    ]
    assert node.list_states() == ([], lines)


def test_the_installed_runtimes_are_found(fs: FakeFilesystem) -> None:
    """Where they are was measured, or is in the sources of those who make them."""
    assert runtimes.find_runtimes() == Runtimes([], [])
    roots = [
        "/run/runc",
        "/run/crun",
        "/run/containerd/runc/k8s.io",
        "/run/containerd/runc/default",
        "/more",
    ]
    for root in roots[1:]:
        fs.create_dir(root)
    for path in (
        "/usr/sbin/runc",
        "/usr/libexec/crio/crun",
        "/var/lib/rancher/k3s/data/current/bin/runc",
    ):
        fs.create_file(path, st_mode=0o100755)
    fs.create_symlink("/usr/bin/runc", "/usr/sbin/runc")
    fs.create_file("/usr/bin/crun", st_mode=0o100644)  # is no program
    paths = [
        "/usr/sbin/runc",
        "/var/lib/rancher/k3s/data/current/bin/runc",
        "/usr/libexec/crio/crun",
    ]
    assert runtimes.find_runtimes(["/more", "/none"]) == Runtimes(["/more", *roots[1:4]], paths)


def test_only_the_given_containers_are_asked_for(node: NodeWithRuntimes) -> None:
    """Whatever their status, sandboxes too; what no runtime has is another tool's, or gone."""
    node.container("web", "pause", "mute", "other")
    answers = [state("web", status="created"), state("pause", annotations={SANDBOX: "sandbox"})]
    asked = Runtimes([str(node.root), "/nowhere"], [node.runtime(*answers)])
    states, unanswered = asked.find_states({"web", "pause", "mute", "docker", "../x"})
    assert [shown(states["web"]), shown(states["pause"])] == answers
    assert [*unanswered] == ["mute"]
    assert node.asked() == ["mute", "pause", "web"]


def test_a_pods_author_cannot_make_a_container_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor can `podman run --annotation=io.kubernetes.cri-o.ContainerType=sandbox`:
    it was never adopted then.
    """

    def is_sandbox(place: str, manager: str | None, **kinds: str) -> bool:
        monkeypatch.setattr(system, "cgroups", lambda _pid: [place])
        annotations = {
            {"cri": SANDBOX, "crio": OF_CRIO}[name]: kind for name, kind in kinds.items()
        }
        annotations |= {"io.container.manager": manager} if manager else {}
        return runtimes.is_sandbox(State.model_validate(state(ID, annotations=annotations)))

    of_cri, of_crio = f":/kubepods/podx/{ID}", f":/kubepods/podx/crio-{ID}"
    for manager in ("cri-o", "libpod", None):
        assert is_sandbox(of_cri, manager, cri="sandbox", crio="sandbox")
        assert is_sandbox(of_crio, manager, cri="sandbox", crio="sandbox")
        assert not is_sandbox(of_cri, manager, cri="container", crio="sandbox")
        assert not is_sandbox(of_crio, manager, cri="sandbox", crio="container")
        for place in (
            f":/machine.slice/libpod-{ID}.scope",
            ":/user.slice",
            ":/kubepods/podx/shared",
        ):
            assert not is_sandbox(place, manager, cri="sandbox", crio="sandbox")
