#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the MachineConfig that the Butane file describes, as JSON, for `oc apply -f -`.

    python3 packaging/openshift/machineconfig.py [--off] > machineconfig.json

Butane does the same. This needs nothing but Python, parses the YAML that the file uses, and refuses any other.
--off: without the JSON of hooks.d, and with a stub as the program, for the first of the two steps that take the hook
off. Containers that live call the program until they end, and deleting the MachineConfig unlinks it.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUTANE = Path(__file__).with_name("resctrl-mon-hook.bu")
IGNITION = {"4.18.0": "3.4.0"}
"""The version of Ignition's specification for each of Butane's for OpenShift."""
# etcd takes 1.5 MiB, and the pool's rendered MachineConfig holds this one and all others.
MOST_BYTES = 1100 << 10

# Words that one version of YAML reads as another value (a boolean, null), and another version as text.
_WORDS_OF_YAML = ("null", "yes", "no", "on", "off", "y", "n", "true", "false")

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
    files = [_file(it, files_dir) for it in butane["storage"]["files"] if not (off and it["path"].endswith(".json"))]
    stubs = [{**it, "contents": _contents(STUB)} if off and it["path"].endswith(".pyz") else it for it in files]
    return {
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": butane["metadata"],
        "spec": {
            "config": {
                "ignition": {"version": IGNITION[butane["version"]]},
                "storage": {"files": stubs},
                "systemd": {"units": [_unit(it, files_dir) for it in butane["systemd"]["units"]]},
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
    return {"compression": compression, "source": f"data:;base64,{base64.b64encode(source).decode()}"}


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
        raise Unfit(f"{sorted(unknown)} is nothing that is known here")


# --- The part of YAML that the file uses


class Reader:
    """Mappings, sequences of mappings, literal blocks (`|`), comments on lines of their own, and plain scalars."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._at = 0

    def read(self) -> Object:
        """Parse the document, a mapping. Raises Unfit for anything else."""
        found = self._mapping(0)
        if (line := self._next()) is not None:
            raise Unfit(f"line {self._at + 1}: {line!r} does not belong to anything")
        return found

    def _next(self) -> str | None:
        """Go to the next line that is neither blank nor a comment; None: the end."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.strip() and not line.lstrip().startswith("#"):
                return line
            self._at += 1
        return None

    def _indent(self) -> int:
        line = self._next() or ""
        return len(line) - len(line.lstrip()) if line else -1

    def _mapping(self, indent: int) -> Object:
        found: Object = {}
        while (line := self._next()) is not None and self._indent() == indent:
            match = re.fullmatch(r" *([A-Za-z_][\w./-]*):(?: (.+))?", line)
            if match is None or match[1] in found or match[1].lower() in _WORDS_OF_YAML:
                raise Unfit(f"line {self._at + 1}: {line!r} is no new key with a value")
            self._at += 1
            found[match[1]] = self._value(match[2], indent)
        return found

    def _value(self, text: str | None, indent: int) -> Any:  # noqa: ANN401  any YAML
        if text == "|":
            return self._literal(indent)
        if text is not None:
            return self._scalar(text)
        inner = self._indent()
        if inner <= indent:
            raise Unfit(f"line {self._at}: no value")
        return self._sequence(inner) if (self._next() or "").lstrip().startswith("- ") else self._mapping(inner)

    def _sequence(self, indent: int) -> list[Object]:
        found = []
        while (line := self._next()) is not None and self._indent() == indent and line.lstrip().startswith("- "):
            self._lines[self._at] = line.replace("- ", "  ", 1)
            found.append(self._mapping(indent + 2))
        return found

    def _literal(self, indent: int) -> str:
        """The lines that are indented more, without the first line's indentation and trailing blank lines."""
        start = self._at
        while self._at < len(self._lines) and (not (line := self._lines[self._at]).strip() or _depth(line) > indent):
            self._at += 1
        lines = self._lines[start : self._at]
        inner = _depth(lines[0])
        return "\n".join(line[inner:] for line in lines).rstrip("\n") + "\n"

    def _scalar(self, text: str) -> str | int | bool:
        if text in ("true", "false"):
            return text == "true"
        if re.fullmatch(r"0[0-7]+", text):
            return int(text, 8)
        if not re.fullmatch(r"(\d+-)?[A-Za-z/][\w./-]*|\d+\.\d+\.\d+", text) or text.lower() in _WORDS_OF_YAML:
            raise Unfit(f"line {self._at}: {text!r} is no plain word")
        return text


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--off"]):
        print(__doc__, end="", file=sys.stderr)
        return 2
    try:
        made = machine_config(Reader(BUTANE.read_text(encoding="utf-8")).read(), ROOT, off=bool(arguments))
    except (Unfit, OSError) as error:
        print(f"machineconfig.py: {error}", file=sys.stderr)
        return 2
    text = json.dumps(made, indent=1) + "\n"
    if len(text) > MOST_BYTES:
        problem = f"{len(text)} bytes are more than the {MOST_BYTES} that leave room for a pool's other MachineConfigs"
        remedy = "remedy: build.py with --bytecode of the Pythons that the nodes have"
        print(f"machineconfig.py: {problem}; {remedy}", file=sys.stderr)
        return 2
    print(text, end="")
    print(f"machineconfig.py: {len(text)} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
