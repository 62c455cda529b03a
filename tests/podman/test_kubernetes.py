# SPDX-License-Identifier: Apache-2.0
"""The chart's image and what its containers do, under real Podman and runc,
with the privileges that the chart gives.

This machine is the node: its /proc and cgroups are seen. Only the two directories that are
installed to are scratch, and resctrl is the model.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib import metadata
from pathlib import Path

import pytest

from fetch import helm
from hook.node.paths import STUB
from tests.resctrlfs import Mounted, mounted
from tests.support import chart, watching
from tests.support.containers import DEADLINE, REPOSITORY, Gate, Lab, missing
from tests.support.hook import NATIVE
from tests.support.machine import HOOKS_DIR
from tests.support.waiting import wait

IMAGES = REPOSITORY / "packaging/kubernetes/image"

PREFIX, HOOKS = "/opt/prefix-of-the-test", "/opt/hooks-of-the-test"
BASE, IMAGE = "localhost/busybox", "localhost/resctrl-mon-hook"
PROGRAMS = [
    f"--volume={path}:{path}:ro" for path in ("/usr", "/lib", "/lib64") if os.path.isdir(path)
]
"""This machine's Python for the image: there may be no registry."""
KUBELETS = "--annotation=io.kubernetes.container.restartCount=0"
NODE, OF_NODE = "n1.example", {"fieldRef": {"fieldPath": "spec.nodeName"}}

absent = "" if NATIVE.is_file() else f"no {NATIVE}: run `python3 build.py native`"
reason = missing() or helm.missing() or absent
pytestmark = pytest.mark.skipif(bool(reason), reason=reason)


class Host:
    """This machine as a node of the chart's; nothing is installed at the beginning."""

    def __init__(self, lab: Lab, directory: Path, resctrl: Mounted) -> None:
        self.lab = lab
        self.resctrl = resctrl
        self.run_dir = directory / "run"
        self.prefix = directory / "prefix"
        self.program = self.prefix / "libexec/oci/hooks.d/resctrl-mon-hook.pyz"
        self.json = lab.hooks_dir / "10-resctrl-mon-hook-kubernetes.json"
        # Podman stands for the kubelet's runtime, whose containers the file is meant for
        self.log = directory / "log"
        history = f"--history={self.log}/history.jsonl"  # the usual place is this machine's own
        self.options = [f"--run-dir={self.run_dir}", "--containers=all", history]
        self.program.parent.mkdir(parents=True)  # as the volumes' DirectoryOrCreate does
        self.run_dir.mkdir()
        self.log.mkdir()
        self.node = directory / "node"  # the pod's emptyDir
        self.node.mkdir()
        self.boot = directory / "tmpfiles.d"
        self.boot.mkdir()
        self.plan = directory / "plan"
        self.plan.mkdir()

    def pods(
        self, *words: str, watch: bool = False, adopt: bool = False
    ) -> dict[str, tuple[chart.Object, chart.Object]]:
        """The chart's containers, each with its pod.

        `watch`, `adopt`: the values of these names.
        """
        options = [*self.options, *words]
        values: chart.Object = {
            "prefix": PREFIX,
            "hooksDir": HOOKS,
            "options": options,
            "watch": watch,
            "adopt": adopt,
        }
        model = {"testing": {"resctrlRoot": str(self.resctrl.root)}}
        values |= {
            **model,
            "history": {"stdout": True},
            "image": {"repository": IMAGE, "tag": "latest"},
        }
        # The chart refuses other directories of resctrl's and the hook's,
        # and places that a boot empties, where scratch directories lie.
        text = render(json.dumps(values))
        objects = json.loads(
            text.replace(HOOKS, str(self.lab.hooks_dir)).replace(PREFIX, str(self.prefix))
        )
        plans = [
            json.loads(part["data"]["plan.json"]) for part in objects if part["kind"] == "ConfigMap"
        ]
        (plan,) = [plan for plan in plans if "remove-json" in plan]
        made = [*objects, plan["remove-json"], plan["remove-program"]]
        pods = [
            part["spec"]["template"]["spec"] for part in made if "template" in part.get("spec", {})
        ]
        both = ("initContainers", "containers")
        return {
            part["name"]: (part, pod) for pod in pods for kind in both for part in pod.get(kind, [])
        }

    def command(
        self, name: str, *words: str, env: Mapping[str, str] | None = None, adopt: bool = False
    ) -> list[str]:
        """`podman run`, with all that the chart says of a container and nothing more."""
        container, pod = self.pods(*words, watch=name == "watch", adopt=adopt)[name]
        security = container["securityContext"]
        volumes = {
            volume["name"]: volume["hostPath"]["path"]
            for volume in pod["volumes"]
            if "hostPath" in volume
        }
        elsewhere = {"run": str(self.run_dir)}  # named by the options, too
        if name != "history":  # which has no options
            elsewhere["history"] = str(self.log)
        scratch = {"tmpfiles": str(self.boot), "node": str(self.node), "adopt": str(self.node)}
        scratch |= {"plan": str(self.plan), "history": str(self.log)}
        mounts = []
        for mount in container["volumeMounts"]:
            source = {**volumes, **elsewhere, **scratch}[mount["name"]]
            # What a runtime keeps, also of one that has not run here yet: the kubelet makes it.
            if adopt:
                os.makedirs(source, exist_ok=True)
            target = elsewhere.get(mount["name"], mount["mountPath"])
            mounts.append(
                f"--volume={source}:{target}:{'ro' if mount.get('readOnly') else 'rw'},rslave"
            )
        # Of this machine's, where the hook may be installed.
        if name == "install" and os.path.isdir(HOOKS_DIR):
            mounts.append(f"--mount=type=tmpfs,notmpcopyup,destination=/host{HOOKS_DIR}")
        if adopt:  # this machine's runc, which PROGRAMS brings
            mounts.append("--mount=type=tmpfs,notmpcopyup,destination=/usr/sbin")
        assert security["readOnlyRootFilesystem"]
        return [
            # Not --rm: Podman gives 127 for a container that was removed
            # before it asks for the status.
            *("run", "--replace", f"--name={name}", f"--cgroup-parent={self.lab.cgroups.path}"),
            f"--network={'host' if pod.get('hostNetwork') else 'none'}",
            *("--read-only", "--read-only-tmpfs=false", "--cgroupns=private", "--cap-drop=all"),
            f"--user={security['runAsUser']}:{security['runAsGroup']}",
            *(f"--cap-add={name}" for name in security["capabilities"].get("add", [])),
            *(
                ["--security-opt=no-new-privileges"]
                if security.get("allowPrivilegeEscalation") is False
                else []
            ),
            *(["--pid=host"] if pod.get("hostPID") else []),
            *(
                f"--env={part['name']}={NODE}"
                for part in container.get("env", [])
                if part.get("valueFrom") == OF_NODE
            ),
            *(f"--env={key}={value}" for key, value in (env or {}).items()),
            *mounts,
            *PROGRAMS,
            container["image"],
            *container["args"],
        ]

    @contextmanager
    def running(
        self, name: str, *words: str, env: Mapping[str, str] | None = None, adopt: bool = False
    ) -> Iterator[subprocess.Popen[str]]:
        """One of the chart's containers; at the end it gets the signal that
        the kubelet sends, and ends.
        """
        command = [*self.lab.podman_command(), *self.command(name, *words, env=env, adopt=adopt)]
        with subprocess.Popen(
            command, env=self.lab.environment, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    self.lab.podman("kill", "--signal=TERM", name)
                    assert process.wait(DEADLINE) == 0

    def completed(
        self, name: str, *words: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """One of them that ends by itself."""
        return self.lab.podman(*self.command(name, *words, env=env), check=False)

    def install(self, *words: str) -> None:
        with self.running("install", *words) as process:
            line_with(process, "10-resctrl-mon-hook-kubernetes.json")

    def state(self) -> list[tuple[str, int, int, bytes]]:
        """All that is installed, exactly."""
        files = [path for path in (self.program, self.json) if path.exists()]
        mark = self.program.with_suffix(".owner")
        assert {*self.program.parent.iterdir()} == (
            {self.program, mark} if self.program in files else set()
        )
        return [
            (file.name, file.stat().st_ino, file.stat().st_mtime_ns, file.read_bytes())
            for file in files
        ]

    def groups(self) -> dict[str, list[int]]:
        groups = self.resctrl.groups().items()
        return {
            path.rpartition("/")[2]: group["tasks"]
            for path, group in groups
            if path.startswith("/mon_groups/")
        }

    def workload(self, name: str) -> Gate:
        """A container as kubelet has it made."""
        return self.lab.run(name, KUBELETS)

    def ask_metrics(self) -> str:
        """What the container `metrics` serves, once it does."""
        ask = (
            "import urllib.request as web; "
            "print(web.urlopen('http://127.0.0.1:9753/metrics').read().decode())"
        )
        wait(
            lambda: (
                self.lab.podman("exec", "metrics", "python3", "-c", ask, check=False).returncode
                == 0
            )
        )
        return self.lab.podman("exec", "metrics", "python3", "-c", ask).stdout

    def bring_in(self, workload: str, number: int) -> None:
        """Start a process in a container by exec, and wait until it runs."""
        inside = self.lab.gate(f"inside-{number}")
        self.lab.podman("exec", "-d", workload, *inside.command)
        inside.wait_up()


@functools.cache
def render(values: str) -> str:
    """JSON of the chart's objects. Loops ask for the same ones, and Helm takes long."""
    return json.dumps(chart.render(json.loads(values), "--skip-schema-validation"))


def line_with(process: subprocess.Popen[str], text: str) -> str:
    """The next line that the container prints with this in it."""
    assert process.stdout is not None
    others = []
    for line in process.stdout:
        if text in line:
            return line
        others.append(line)
    raise AssertionError(f"no {text!r} in {others}")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Podman with the image, and with no hook of ours but those that are installed."""
    with closing(Lab()) as lab:
        (lab.hooks_dir / "10-resctrl-mon-hook.json").unlink()
        lab.import_image(BASE)
        context = tmp_path_factory.mktemp("client")
        copy_client(context / "client")
        given = [f"--build-arg=BASE={BASE}", f"--build-arg=ARCH={platform.machine()}"]
        words = ["--layers=false", *given, f"--file={IMAGES / 'Containerfile'}", f"--tag={IMAGE}"]
        lab.podman("build", *words, f"--build-context=client={context}", str(REPOSITORY))
        shutil.rmtree(context)
        yield lab


def copy_client(directory: Path) -> None:
    """Copy the client of the API server from this Python, as pip puts it there:
    there may be no registry.
    """
    for name in re.findall(r"^([\w-]+)==", (IMAGES / "requirements.txt").read_text(), re.MULTILINE):
        for path in metadata.files(name) or ():
            if path.parts[0] != ".." and path.suffix != ".pyc":
                (directory / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path.locate(), directory / path)


@pytest.fixture
def host(lab: Lab, tmp_path: Path) -> Iterator[Host]:
    sysfs = tmp_path / "fs"
    sysfs.mkdir()
    with shared(sysfs), mounted(sysfs) as resctrl:
        host = Host(lab, tmp_path, resctrl)
        try:
            yield host
        finally:
            lab.podman("rm", "-f", "-a", "-t", "0")
            host.json.unlink(missing_ok=True)


@contextmanager
def shared(directory: Path) -> Iterator[None]:
    """What is mounted or unmounted below it reaches containers that have it with
    HostToContainer, as a host's /sys.
    """
    subprocess.run(["mount", "--bind", directory, directory], check=True, timeout=DEADLINE)
    try:
        subprocess.run(["mount", "--make-shared", directory], check=True, timeout=DEADLINE)
        yield
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True, timeout=DEADLINE)


def test_an_installation_is_ready_and_an_upgrade_replaces_what_has_changed(host: Host) -> None:
    with host.running("install", "--linger=60") as process:
        line_with(process, host.json.name)
        wait(lambda: probe(host, "install").returncode == 0)
        program, json_ = installed = host.state()
        assert (host.node / "installed").stat().st_mtime == pytest.approx(
            host.json.stat().st_mtime, abs=0.01
        )
        host.program.chmod(0o644)
        wait(lambda: "not in place" in probe(host, "install").stdout)
        host.program.chmod(0o755)
        wait(lambda: probe(host, "install").returncode == 0)
    assert host.state() == installed, "its end changes nothing"
    host.install()
    assert host.state()[0] == program
    assert host.state()[1][1] != json_[1], "a new file was renamed into its place"
    assert "--linger=60" not in json.loads(host.json.read_text())["hook"]["args"]
    host.workload("first")
    init = host.lab.init("first")
    assert host.groups() == {f"oci-{host.lab.container_id('first')}": [init.pid]}


def test_reconcile_sees_the_hosts_cgroups(host: Host) -> None:
    """What exec brought in is found by the container's cgroup, as the host names it."""
    host.install()
    host.workload("second")
    host.bring_in("second", 1)
    group = f"oci-{host.lab.container_id('second')}"
    assert len(host.groups()[group]) == 1
    with host.running("reconcile") as process:
        line_with(process, "adopt")
        assert len(host.groups()[group]) == 2
        pid = host.lab.init("reconcile").pid
        assert os.readlink(f"/proc/{pid}/ns/cgroup") == os.readlink("/proc/self/ns/cgroup")


@pytest.mark.skipif(watching.missing() is not None, reason=str(watching.missing()))
def test_watch_moves_in_what_podman_exec_brings_in(host: Host) -> None:
    host.install()
    host.workload("watched")
    group = f"oci-{host.lab.container_id('watched')}"
    with host.running("watch"):
        for number in (2, 3):  # the first one may be there before it listens
            host.bring_in("watched", number)
            wait(lambda: len(host.groups()[group]) == number)  # noqa: B023  called at once


def test_resctrl_comes_and_goes_for_reconcile_as_it_does_on_the_host(host: Host) -> None:
    """Else it would judge groups of a mount that the host has no more, and keep that busy."""
    (host.resctrl.root / "mon_groups/oci-x").mkdir()
    with host.running("reconcile") as process:
        assert "oci-x" in line_with(process, "remove"), "it may write there, though not beside it"
        inside = Path(f"/proc/{host.lab.init('reconcile').pid}/root{host.resctrl.root}")
        with pytest.raises(OSError, match="Read-only"):
            (inside.parent / "x").mkdir()
        host.resctrl.close()
        assert list(inside.iterdir()) == []
        host.resctrl.root.rmdir()
        (host.resctrl.root.parent / "resctrl.sock").unlink()
        with mounted(host.resctrl.root.parent) as again:
            assert again.root == host.resctrl.root
            (inside / "mon_groups/oci-y").mkdir()
            assert "/mon_groups/oci-y" in again.groups()


def test_adopt_brings_in_what_started_without_the_hook_and_no_runtime_of_the_node_is_run(
    host: Host,
) -> None:
    host.workload("before")
    assert host.groups() == {}
    with host.running("reconcile", adopt=True) as process:
        line_with(process, f"adopt {host.lab.container_id('before')[:12]}")
        assert host.lab.podman("exec", "reconcile", "ls", "/usr/sbin").stdout == ""
    assert host.groups()[f"oci-{host.lab.container_id('before')}"] == [host.lab.init("before").pid]


def test_what_ends_has_a_line_with_the_nodes_name_which_history_prints(host: Host) -> None:
    host.install("--linger=0")
    with host.running("history") as process:
        gate = host.workload("billed")
        container = host.lab.container_id("billed")
        gate.open()
        line = json.loads(line_with(process, container))
    assert (line["node"], line["key"], line["reason"]) == (NODE, container, None)


def test_reconcile_refuses_a_cgroup_namespace_of_its_own(host: Host) -> None:
    """There it would take a container's tasks for strangers, and move them out."""
    done = host.completed("reconcile", env={"RESCTRL_MON_HOOK_CONFINED": "1"})
    assert done.returncode == 1
    assert "not in the host's cgroup namespace" in done.stderr


def test_a_removal_ends_all_keys_and_live_containers_end_with_a_stub(host: Host) -> None:
    host.install("--linger=3600")
    gate = host.workload("third")
    container = host.lab.container_id("third")
    true = ("--rootfs", str(host.lab.rootfs), "/bin/true")
    host.lab.podman("run", "--name=job", *host.lab.options("job"), KUBELETS, *true)
    ended = host.lab.container_id("job")

    assert host.completed("remove-json").returncode == 0
    assert [name for name, *_ in host.state()] == [host.program.name]
    host.lab.podman("run", *host.lab.options("later"), KUBELETS, *true)
    host.lab.watch.wait("poststop", host.lab.container_id("later"))
    assert set(host.groups()) == {f"oci-{container}", f"oci-{ended}"}

    done = host.completed("remove-program", "--linger=3600")
    assert (done.returncode, done.stderr) == (0, "")
    assert host.groups() == {}
    assert list(host.run_dir.iterdir()) == []
    lines = map(json.loads, (host.log / "history.jsonl").read_text().splitlines())
    assert {(line["key"], line["node"]) for line in lines} == {(container, NODE), (ended, NODE)}
    assert host.program.read_bytes() == STUB
    assert [path.name for path in host.program.parent.iterdir()] == [host.program.name]
    assert [path.read_text().splitlines()[0] for path in host.boot.iterdir()] == [
        f"r! {host.program}"
    ]
    gate.open()
    host.lab.watch.wait("poststop", container)
    assert host.lab.podman("wait", "third").stdout == "0\n"
    host.lab.podman("rm", "third", "job")

    assert "belongs to another installation" in host.completed("remove-program").stdout
    host.install()
    assert list(host.boot.iterdir()) == []
    assert [name for name, *_ in host.state()] == [host.program.name, host.json.name]


def test_a_removal_outside_of_a_cluster_says_why_it_cannot_reach_the_api_server(host: Host) -> None:
    """The client of the API server is in the image, and starts there."""
    (host.plan / "plan.json").write_text('{"namespace": "ns"}')
    done = host.completed("uninstall")
    assert done.returncode == 1
    assert "this pod cannot reach the API server: Service host/port is not set" in done.stderr


METRICS = {"METRICS": "--listen=127.0.0.1:9753"}


def probe(host: Host, name: str) -> subprocess.CompletedProcess[str]:
    """The readiness probe of a container that runs, as the kubelet starts it."""
    container, _ = host.pods(watch=name == "watch")[name]
    return host.lab.podman(
        "exec", name, *container["readinessProbe"]["exec"]["command"], check=False
    )


@pytest.mark.parametrize("lost", ["run", "log"])
def test_containers_are_ready_until_a_directory_is_lost_and_end_then(host: Host, lost: str) -> None:
    """The kubelet starts them again, with the directory that hooks use now."""
    try:
        with host.running("reconcile") as first, host.running("metrics", env=METRICS) as second:
            for name in ("reconcile", "metrics"):
                wait(lambda: probe(host, name).returncode == 0)  # noqa: B023  called at once
            if lost == "run":
                subprocess.run(
                    ["mount", "-t", "tmpfs", "none", host.run_dir], check=True, timeout=DEADLINE
                )
            else:
                shutil.rmtree(host.log)
            assert [first.wait(DEADLINE), second.wait(DEADLINE)] == [1, 1]
    finally:
        subprocess.run(["umount", "--quiet", host.run_dir], check=False, timeout=DEADLINE)


def test_metrics_are_served_without_a_capability(host: Host) -> None:
    host.install()
    host.workload("scraped")
    with host.running("metrics", env=METRICS) as process:
        line_with(process, "listening on http://127.0.0.1:9753/metrics")
        served = host.ask_metrics()
    (key,) = host.groups()
    assert f'key="{key.removeprefix("oci-")}"' in served
    assert 'resctrl_mon_members{state="alive"} 1' in served
    assert "resctrl_mon_node_core_energy_joules_total" in served
