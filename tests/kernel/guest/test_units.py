# SPDX-License-Identifier: Apache-2.0
"""The units under a real systemd: whether they do their work with the rights that they keep,
and what becomes of them.

Here systemd is PID 1, and the units are where `install` puts them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.fuse.test_watch import exec_into
from tests.kernel.inside import SYSTEMD, systemctl, wait_for_systemd
from tests.support.cgroups import Cgroup, container_cgroup
from tests.support.hook import DEADLINE, UID, Hook, created, shipped, stopped, task
from tests.support.waiting import wait

HOOK = Hook(Path("/sys/fs/resctrl"), Path("/run/resctrl-mon-hook"))
ID = "5f3c" * 16
GROUP = f"oci-{UID}"
pytestmark = pytest.mark.skipif(not SYSTEMD.exists(), reason=f"no {SYSTEMD}")
WATCH, VIEW, RECONCILE, TEXTFILE, METRICS = (
    f"resctrl-mon-hook-{name}.service"
    for name in ("watch", "view", "reconcile", "textfile", "metrics")
)
RECORD = HOOK.run_dir / "watch.json"
PROM = Path("/var/lib/prometheus/node-exporter/resctrl.prom")


def state(unit: str, name: str) -> str:
    return systemctl("show", "--value", f"--property={name}", unit)


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    wait_for_systemd()
    command = [str(shipped()), "install", "--watch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    """The cgroup of a container that runs."""
    with container_cgroup(UID, ID) as made, task() as init:
        made.add(init.pid)
        assert HOOK(created(ID, init.pid, pod_uid=UID)).stderr == ""
        yield made
        made.kill()
        HOOK(stopped(ID))


def is_charged(cgroup: Cgroup) -> bool:
    """Whether what exec brought in is there, and all of the container is in its group."""
    return len(cgroup.pids()) == 2 and HOOK.tasks(GROUP) == cgroup.pids()


def test_watch_has_the_rights_that_it_needs_and_has_not_failed_when_it_is_stopped(
    cgroup: Cgroup,
) -> None:
    wait(RECORD.exists)  # it listens
    with exec_into(cgroup):
        wait(lambda: is_charged(cgroup))
    assert systemctl("stop", WATCH) == ""
    assert (state(WATCH, "ActiveState"), state(WATCH, "Result")) == ("inactive", "success")
    assert not RECORD.exists()


def test_view_has_the_rights_that_it_needs_and_has_not_failed_when_it_is_stopped(
    cgroup: Cgroup,
) -> None:
    assert systemctl("start", VIEW) == ""
    wait((HOOK.run_dir / "mon_groups" / UID / "tasks").exists)
    assert {
        *map(int, (HOOK.run_dir / "mon_groups" / UID / "tasks").read_text().split())
    } == cgroup.pids()
    assert systemctl("stop", VIEW) == ""
    assert (state(VIEW, "ActiveState"), state(VIEW, "Result")) == ("inactive", "success")


def test_reconcile_has_the_rights_that_it_needs(cgroup: Cgroup) -> None:
    systemctl("stop", WATCH)
    with exec_into(cgroup):
        wait(lambda: len(cgroup.pids()) == 2)
        (HOOK.resctrl_root / "mon_groups" / GROUP).rmdir()
        assert systemctl("start", RECONCILE) == ""
        assert is_charged(cgroup)
    assert state(RECONCILE, "Result") == "success"


def test_reconciles_unit_asks_podman_with_full_rights_if_the_mark_is_there() -> None:
    """Podman takes root for a rootless user otherwise.

    This one notes its rights where the unit cannot write.
    """
    podman, rights = Path("/usr/local/sbin/podman"), Path("/run/rights")
    podman.write_text(f"#!/bin/sh\ngrep CapEff: /proc/self/status >{rights}\necho '[]'\n")
    podman.chmod(0o755)
    mark, answer = (HOOK.run_dir / f"podman-pods.{ending}" for ending in ("wanted", "json"))
    assert systemctl("start", RECONCILE) == ""
    assert not rights.exists()
    mark.touch()
    assert systemctl("start", RECONCILE) == ""
    assert int(rights.read_text().split()[1], 16) & 1 << 21, "CAP_SYS_ADMIN"
    assert (answer.read_text(), mark.exists()) == ("[]\n", False)
    assert state(RECONCILE, "Result") == "success"
    podman.unlink()


def test_the_textfile_is_written(cgroup: Cgroup) -> None:
    PROM.parent.mkdir(parents=True, exist_ok=True)
    shutil.chown(PROM.parent, "nobody")
    assert systemctl("start", TEXTFILE) == ""
    assert f'uid="{UID}"' in PROM.read_text()
    assert cgroup.pids()


@pytest.mark.usefixtures("cgroup")
def test_the_metrics_are_served() -> None:
    assert systemctl("start", METRICS) == ""
    wait(lambda: f'uid="{UID}"' in fetch_metrics())
    assert systemctl("stop", METRICS) == ""
    assert state(METRICS, "Result") == "success"


def fetch_metrics() -> str:
    """The answer of the server; empty until it listens."""
    try:
        with urlopen("http://127.0.0.1:9753/metrics", timeout=DEADLINE) as answer:
            return str(answer.read(), "utf-8")
    except URLError:
        return ""


JOBS = Path(__file__).resolve().parents[3] / "docs/jobs.md"
EXAMPLES = re.findall(r"```\n(\[Service\].*?)```", JOBS.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=["root's", "a user's"])
def test_services_of_the_docs_have_a_group_while_they_run(text: str) -> None:
    command = Path("/usr/bin/backup")
    command.write_text("#!/bin/sh\nexec sleep infinity\n", encoding="utf-8")
    command.chmod(0o755)
    Path("/run/systemd/system/nightly.service").write_text(text, encoding="utf-8")
    systemctl("daemon-reload")
    assert systemctl("start", "nightly.service") == ""
    main = int(state("nightly.service", "MainPID"))
    wait(lambda: "oci-nightly" in HOOK.groups() and HOOK.tasks("oci-nightly") == {main})
    assert systemctl("stop", "nightly.service") == ""
    assert "oci-nightly" not in HOOK.groups(), (
        "a released job does not linger, whatever hooks.d says"
    )
    assert state("nightly.service", "Result") == "success"
