#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the MachineConfig that the Butane file describes, as JSON, for `oc apply -f -`.

    python3 packaging/openshift/machineconfig.py [--off] > machineconfig.json

Butane does the same. This needs PyYAML (python3-yaml), and refuses what it does not know. --off:
without the JSON of hooks.d, and with a stub as the program, for the first of the two steps that
take the hook off. Containers that live call the program until they end, and deleting the
MachineConfig unlinks it.
"""

from __future__ import annotations

import base64
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
BUTANE = Path(__file__).with_name("resctrl-mon-hook.bu")
IGNITION = {"4.18.0": "3.4.0"}
"""The version of Ignition's specification for each of Butane's for OpenShift."""
# etcd takes 1.5 MiB, and the pool's rendered MachineConfig holds this one and all others.
MOST_BYTES = 1280 << 10

STUB = b"#!/bin/true\n"
"""What `uninstall` leaves at the program's path."""

Object = dict[str, Any]


class Unfit(Exception):
    """The file cannot be made into a MachineConfig; the text says why."""


def machine_config(butane: Object, files_dir: Path, *, off: bool = False) -> Object:
    """Make the MachineConfig. Raises Unfit, OSError."""
    _only(butane, "variant", "version", "metadata", "storage", "systemd")
    if butane["variant"] != "openshift" or butane["version"] not in IGNITION:
        raise Unfit(f"variant {butane['variant']} {butane['version']} is unknown here")
    _only(butane["metadata"], "name", "labels")
    _only(butane["storage"], "files")
    _only(butane["systemd"], "units")
    wanted = [
        file for file in butane["storage"]["files"] if not (off and file["path"].endswith(".json"))
    ]
    files = [_file(file, files_dir) for file in wanted]
    stubs = [
        {**file, "contents": _contents(STUB)} if off and file["path"].endswith(".pyz") else file
        for file in files
    ]
    return {
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": butane["metadata"],
        "spec": {
            "config": {
                "ignition": {"version": IGNITION[butane["version"]]},
                "storage": {"files": stubs},
                "systemd": {
                    "units": [_unit(unit, files_dir) for unit in butane["systemd"]["units"]]
                },
            }
        },
    }


def _file(butane: Object, files_dir: Path) -> Object:
    _only(butane, "path", "mode", "overwrite", "contents")
    _only(butane["contents"], "local", "inline")
    local = butane["contents"].get("local")
    content = (files_dir / local).read_bytes() if local else butane["contents"]["inline"].encode()
    return {**butane, "contents": _contents(content)}


def _contents(content: bytes) -> Object:
    """Encode content as a data URL, compressed if that is shorter; reproducibly."""
    packed = gzip.compress(content, 9, mtime=0)
    source, compression = (packed, "gzip") if len(packed) < len(content) else (content, "")
    return {
        "compression": compression,
        "source": f"data:;base64,{base64.b64encode(source).decode()}",
    }


def _unit(butane: Object, files_dir: Path) -> Object:
    _only(butane, "name", "enabled", "contents", "contents_local", "dropins")
    unit = {name: value for name, value in butane.items() if name != "contents_local"}
    if "contents_local" in butane:
        unit["contents"] = (files_dir / butane["contents_local"]).read_text(encoding="utf-8")
    for dropin in unit.get("dropins", []):
        _only(dropin, "name", "contents")
    return unit


def _only(mapping: Object, *names: str) -> None:
    if unknown := mapping.keys() - set(names):
        raise Unfit(f"{sorted(unknown)} is unknown here")


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--off"]):
        print(__doc__, end="", file=sys.stderr)
        return 2
    try:
        made = machine_config(
            yaml.safe_load(BUTANE.read_text(encoding="utf-8")), ROOT, off=bool(arguments)
        )
    except (Unfit, OSError) as error:
        print(f"machineconfig.py: {error}", file=sys.stderr)
        return 2
    text = json.dumps(made, indent=1) + "\n"
    if len(text) > MOST_BYTES:
        problem = (
            f"{len(text)} bytes are more than the {MOST_BYTES} that leave room for a pool's other "
            "MachineConfigs"
        )
        remedy = "remedy: build.py with --bytecode of the Pythons that the nodes have"
        print(f"machineconfig.py: {problem}; {remedy}", file=sys.stderr)
        return 2
    print(text, end="")
    print(f"machineconfig.py: {len(text)} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
