# SPDX-License-Identifier: Apache-2.0
"""The Helm chart, rendered by what Helm itself is made of (chart_renderer/main.go): Helm is in no package registry."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "packaging" / "kubernetes" / "chart"
VALUES = CHART / "values.yaml"
RENDERER = Path(__file__).with_name("chart_renderer") / "main.go"
LIBRARIES = Path("/usr/share/gocode")  # Debian's, as sources
NEEDED = ("src/github.com/Masterminds/sprig", "src/sigs.k8s.io/yaml")
RELEASE = {"Name": "hook", "Namespace": "monitoring", "Service": "Helm"}

Object = dict[str, Any]


def missing() -> str | None:
    """Why the chart cannot be rendered here; None if it can."""
    if shutil.which("go") is None:
        return "no go (Debian: golang-go)"
    absent = [name for name in NEEDED if not (LIBRARIES / name).is_dir()]
    return f"no {', '.join(absent)} in {LIBRARIES}" if absent else None


def load(path: Path) -> Object:
    loaded: Object = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def render(
    values: Object | None = None, release: Object | None = None, cluster: list[Object] | None = None
) -> list[Object]:
    """The objects that Helm would make. RuntimeError with what the engine says. `cluster`: those that are there."""
    chart = load(CHART / "Chart.yaml")
    context = {
        "Values": _merged(load(VALUES), values or {}),
        "Release": {**RELEASE, **(release or {})},
        "Chart": {"Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"]},
    }
    templates = {path.name: path.read_text(encoding="utf-8") for path in (CHART / "templates").rglob("*.*")}
    files = {path.name: path.read_text(encoding="utf-8") for path in CHART.iterdir() if path.is_file()}
    there = {
        f"{item['kind']} {item['metadata']['namespace']}/{item['metadata']['name']}": item for item in cluster or []
    }
    done = subprocess.run(
        [_renderer()],
        input=json.dumps({"templates": templates, "files": files, "context": context, "cluster": there}),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    rendered = json.loads(done.stdout).items()
    return [
        item
        for name, text in rendered
        if name.endswith(".yaml")
        for item in yaml.safe_load_all(text)
        if item is not None
    ]


def _merged(defaults: Object, values: Object) -> Object:
    """As Helm merges: maps by their keys, anything else is replaced."""
    both = {
        name: _merged(defaults[name], values[name])
        for name in defaults.keys() & values.keys()
        if isinstance(values[name], dict)
    }
    return {**defaults, **values, **both}


@cache
def _renderer() -> Path:
    """The program, built once in a process; go keeps what it compiled for the next one."""
    directory = Path(mkdtemp(prefix="chart-renderer-"))
    atexit.register(shutil.rmtree, directory)
    program = directory / "render"
    subprocess.run(
        ["go", "build", "-o", program, RENDERER],
        env={**os.environ, "GO111MODULE": "off", "GOPATH": str(LIBRARIES), "GOFLAGS": ""},
        check=True,
        timeout=300,
    )
    return program
