# SPDX-License-Identifier: Apache-2.0
"""The MachineConfig for OpenShift equals the Butane file, which has what the project ships;
and that for Ignition.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fetch import interpreters
from hook.node.paths import OWNERS, STUB, Places
from pyz import archive
from tests.unit.test_systemd import analyze, needs_analyze

import machineconfig

ROOT = Path(__file__).resolve().parents[2]
OPENSHIFT = ROOT / "packaging" / "openshift"
BUTANE: dict[str, Any] = yaml.safe_load(
    (OPENSHIFT / "resctrl-mon-hook.bu").read_text(encoding="utf-8")
)
POLICY: dict[str, Any] = yaml.safe_load(
    (OPENSHIFT / "nodedisruptionpolicy.yaml").read_text(encoding="utf-8")
)
PLACES = Places("/usr/local", "/etc/containers/oci/hooks.d")
JSON = PLACES.json("kubernetes")
VALIDATE = shutil.which("ignition-validate")
RHEL_COREOS = ((3, 9), (3, 12))  # RHEL 9's and RHEL 10's


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Butane is given for --files-dir."""
    root = tmp_path_factory.mktemp("tree")
    shutil.copytree(
        ROOT / "packaging", root / "packaging", ignore=shutil.ignore_patterns("__pycache__")
    )
    fitting = [
        str(python.path) for python in interpreters.find() if python.version[:2] in RHEL_COREOS
    ]
    archive.build(output=root / "dist" / "resctrl-mon-hook.pyz", interpreters=fitting)
    return root


@pytest.fixture(scope="module")
def made(tree: Path) -> dict[str, Any]:
    return machineconfig.machine_config(BUTANE, tree)


def files(made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {file["path"]: file for file in made["spec"]["config"]["storage"]["files"]}


def units(made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {unit["name"]: unit for unit in made["spec"]["config"]["systemd"]["units"]}


def content(file: dict[str, Any]) -> bytes:
    """What Ignition would write."""
    packed = base64.b64decode(file["contents"]["source"].removeprefix("data:;base64,"))
    return gzip.decompress(packed) if file["contents"]["compression"] == "gzip" else packed


# --- The MachineConfig and the Butane file


def test_every_file_has_its_content_and_lies_where_the_program_knows_it_and_the_json_is_last(
    made: dict[str, Any], tree: Path
) -> None:
    by_path = files(made)
    assert {*by_path} == {PLACES.owner, PLACES.program, PLACES.tmpfiles, JSON}
    assert list(by_path)[-1] == JSON
    for file in BUTANE["storage"]["files"]:
        local, made_file = file["contents"].get("local"), by_path[file["path"]]
        expected = (tree / local).read_bytes() if local else file["contents"]["inline"].encode()
        mode = 0o755 if file["path"] == PLACES.program else 0o644
        assert (content(made_file), made_file["mode"], made_file["overwrite"]) == (
            expected,
            mode,
            file["overwrite"],
        )
    assert content(by_path[PLACES.owner]).decode().strip() in OWNERS
    shipped = json.loads((ROOT / "oci-hooks" / Path(JSON).name).read_text(encoding="utf-8"))
    assert json.loads(content(by_path[JSON])) == {
        **shipped,
        "hook": {**shipped["hook"], "path": PLACES.program},
    }


def test_every_unit_has_its_contents_and_dropins(made: dict[str, Any]) -> None:
    assert list(units(made)) == [unit["name"] for unit in BUTANE["systemd"]["units"]]
    for unit in BUTANE["systemd"]["units"]:
        made_unit = units(made)[unit["name"]]
        local = unit.get("contents_local")
        assert made_unit["contents"] == (
            (ROOT / local).read_text(encoding="utf-8") if local else unit["contents"]
        )
        for name in ("enabled", "dropins"):
            assert made_unit.get(name) == unit.get(name)
        assert not made_unit.keys() - {"name", "enabled", "contents", "dropins"}


def test_what_is_not_known_is_refused_and_not_left_out(tree: Path) -> None:
    for place in ("", "metadata", "storage", "systemd"):
        strange = json.loads(json.dumps(BUTANE))
        (strange[place] if place else strange)["kernel_arguments"] = []
        with pytest.raises(machineconfig.Unfit, match="kernel_arguments"):
            machineconfig.machine_config(strange, tree)


@pytest.mark.skipif(VALIDATE is None, reason="no ignition-validate (Debian: ignition)")
def test_ignition_itself_takes_it_but_not_a_slip(made: dict[str, Any], tmp_path: Path) -> None:
    """Debian 12's does not know 3.4.0 yet; nothing in it is newer than 3.3.0."""
    assert VALIDATE is not None
    for name, status in (("path", 0), ("pth", 1)):
        config = json.loads(json.dumps(made["spec"]["config"]).replace('"path"', f'"{name}"'))
        config["ignition"]["version"] = "3.3.0"
        (tmp_path / "config.ign").write_text(json.dumps(config))
        assert subprocess.run([VALIDATE, tmp_path / "config.ign"], check=False).returncode == status


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = directory / "packaging" / "openshift" / "machineconfig.py"
    return subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True, check=False, timeout=300
    )


def test_command_prints_it_and_off_is_the_same_without_the_json_and_with_a_stub(
    made: dict[str, Any], tree: Path
) -> None:
    """Which does nothing, also where systemd starts Python with it."""
    printed = run(tree).stdout
    assert json.loads(printed) == made
    assert len(printed) < machineconfig.MOST_BYTES
    off = json.loads(run(tree, "--off").stdout)
    assert files(made).keys() - files(off).keys() == {JSON}
    assert units(off) == units(made)
    same = files(off).keys() - {PLACES.program}
    assert {path: files(off)[path] for path in same} == {path: files(made)[path] for path in same}
    program = files(off)[PLACES.program]
    assert (content(program), program["mode"]) == (STUB, 0o755)
    done = subprocess.run(
        [sys.executable, "-c", STUB], capture_output=True, check=True, timeout=300
    )
    assert done.stdout + done.stderr == b""


# --- What is in it


def test_the_services_command_is_the_program_here_and_resctrl_is_mounted_by_the_timer_at_the_latest(
    made: dict[str, Any],
) -> None:
    (dropin,) = units(made)["resctrl-mon-hook-reconcile.service"]["dropins"]
    command = f"ExecStart=/usr/bin/python3 -I -S {PLACES.program} reconcile"
    assert dropin["contents"].splitlines() == ["[Service]", "ExecStart=", command]
    mount = units(made)["sys-fs-resctrl.mount"]
    assert mount["enabled"] is True
    assert "Before=crio.service" in mount["contents"].splitlines()
    (dropin,) = units(made)["resctrl-mon-hook-reconcile.timer"]["dropins"]
    assert dropin["contents"] == "[Unit]\nWants=sys-fs-resctrl.mount\n"


IGNITION: dict[str, Any] = yaml.safe_load(
    (ROOT / "packaging/ignition/resctrl-mon-hook.bu").read_text("utf-8")
)


def test_systems_without_python_get_the_elf_file_by_its_digest_and_it_installs_itself() -> None:
    by_path = {file["path"]: file for file in IGNITION["storage"]["files"]}
    by_name = {unit["name"]: unit for unit in IGNITION["systemd"]["units"]}
    (line,) = re.findall(
        "^ExecStart=(.*)$", by_name["resctrl-mon-hook-install.service"]["contents"], re.MULTILINE
    )
    program, verb, *words = line.split()
    assert (verb, by_path[program]["mode"]) == ("install", 0o755)
    assert re.fullmatch("sha256-[0-9a-f]{64}", by_path[program]["contents"]["verification"]["hash"])
    assert "--prefix=/usr/local" in words
    conf = by_path["/etc/containers/containers.conf.d/10-resctrl-mon-hook.conf"]["contents"][
        "inline"
    ]
    assert f'"{PLACES.hooks_dir}"' in conf
    assert f" {PLACES.program}\n" in by_name["resctrl-mon-hook-install.service"]["contents"]
    assert (ROOT / by_name["sys-fs-resctrl.mount"]["contents_local"]).is_file()


@needs_analyze
def test_systemd_has_no_complaint(made: dict[str, Any], tmp_path: Path) -> None:
    install = IGNITION["systemd"]["units"][1]
    for name, unit in {**units(made), install["name"]: install}.items():
        (tmp_path / name).write_text(unit["contents"])
        for dropin in unit.get("dropins", []):
            (tmp_path / f"{name}.d").mkdir()
            (tmp_path / f"{name}.d" / dropin["name"]).write_text(dropin["contents"])
    paths = [str(tmp_path / name) for name in (*units(made), install["name"])]
    done = analyze(tmp_path, "verify", "--man=no", "--generators=no", *paths)
    complaints = [
        line
        for line in done.stderr.splitlines()
        if "resctrl" in line and "not executable" not in line
    ]
    assert complaints == []


# --- The policy


def test_the_policy_is_the_clusters_own_and_covers_every_file_and_every_unit(
    made: dict[str, Any],
) -> None:
    """One that is missing would have every node of the pool rebooted."""
    assert (POLICY["kind"], POLICY["metadata"]) == ("MachineConfiguration", {"name": "cluster"})
    policy = POLICY["spec"]["nodeDisruptionPolicy"]
    assert {file["path"] for file in policy["files"]} == set(files(made))
    assert {unit["name"] for unit in policy["units"]} == set(units(made))


def test_the_policy_neither_reboots_nor_unmounts() -> None:
    """openshift/api allows the action None only alone, and Restart only with a service."""
    policy = POLICY["spec"]["nodeDisruptionPolicy"]
    for item in (*policy["files"], *policy["units"]):
        kinds = [action["type"] for action in item["actions"]]
        assert set(kinds) <= {"None", "DaemonReload", "Restart"}
        assert "None" not in kinds or len(kinds) == 1
        for action in item["actions"]:
            assert (action["type"] == "Restart") == ("restart" in action)
            assert action.get("restart", {}).get("serviceName") != "sys-fs-resctrl.mount"
