# SPDX-License-Identifier: Apache-2.0
"""Makes all files of a release: `python3 build.py release`.

The same sources, interpreters, compilers and libraries give the same bytes. The times in them are
$SOURCE_DATE_EPOCH, or that of the last commit.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tarfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import package
from package import MAINTAINER, NAME

from hook import __version__
from native import cpython, native
from pyz import ROOT, BuildError, archive

MACHINES = ("x86_64", "aarch64")
"""Those of the ELF files.

The first one builds: its CPython is trained on it; a cross compiler makes the other.
"""
CHART = ROOT / "packaging/kubernetes/chart"
SBOM = f"{NAME}-{__version__}.spdx.json"
SUMS = "SHA256SUMS"
OUR_LICENSE, OURSELVES = "Apache-2.0", f"Organization: {MAINTAINER.partition(' <')[0]}"
LICENSES = {cpython.SOURCE: "Python-2.0 AND MIT", "glibc": "LGPL-2.1-or-later", "zlib": "Zlib"}
"""By Debian's source package of what is linked in. packaging/copyright says whose each is."""


class Library(NamedTuple):
    """What is linked into an ELF file: a source package of Debian."""

    name: str
    version: str


class Contents(NamedTuple):
    """What a file of the release has in it: libraries, or another of the files."""

    libraries: Sequence[Library] = ()
    file: str = ""
    comment: str = ""


def make(output: Path, pythons: Mapping[str, str]) -> None:
    """Write a release into a directory, which is emptied first.

    SHA256SUMS comes last: without it, it is not whole.

    `pythons`: the CPythons to compile the .pyz for, and their versions. One that lacks is an error,
    before anything takes minutes.
    """
    check_version(
        (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        (CHART / "Chart.yaml").read_text(encoding="utf-8"),
    )
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    pyz = archive.build(output=output / f"{NAME}.pyz", interpreters=pythons, release=True)
    contents = {pyz.name: Contents(comment=f"Bytecode by CPython {', '.join(pythons.values())}")}
    for machine in MACHINES:
        program = native.build_for(machine, output / f"{NAME}-{machine}", newest=True)
        contents[program.name] = Contents(libraries=read_libraries(program))
        for packed in package.package(program, output, package.KINDS, check=True):
            contents[packed.name] = Contents(file=program.name)
    epoch = package.find_epoch()
    contents[pack_chart(CHART, output, epoch).name] = Contents()
    described = describe({name: digest(output / name) for name in contents}, contents, epoch)
    (output / SBOM).write_text(json.dumps(described, indent=2) + "\n", encoding="ascii")
    print(f"{sum_up(output)}  {output / SUMS}", flush=True)


def check_version(changes: str, chart: str) -> None:
    """Raise BuildError unless the change log has a date for this version,
    and the chart is of this version.
    """
    if not re.search(
        rf"^## {re.escape(__version__)}, [0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}$", changes, re.MULTILINE
    ):
        raise BuildError(
            f"CHANGELOG.md has no `## {__version__}, YYYY-MM-DD`: write the date of the release "
            "there"
        )
    if re.findall(r"^(?:version|appVersion): (.+)$", chart, re.MULTILINE) != [__version__] * 2:
        raise BuildError(
            f"Chart.yaml: version and appVersion must be {__version__}, as in hook/__init__.py"
        )


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sum_up(directory: Path) -> str:
    """Write the file that `sha256sum --check` takes; returns its own SHA-256."""
    lines = [f"{digest(path)}  {path.name}\n" for path in sorted(directory.iterdir())]
    (directory / SUMS).write_text("".join(lines), encoding="ascii")
    return digest(directory / SUMS)


# --- The chart


def pack_chart(chart: Path, output: Path, epoch: int) -> Path:
    """Make the archive of a chart, as `helm package` lays it out:
    all files below a directory of the chart's name.

    Helm itself writes the time at which it packs.
    """
    lines = (chart / "Chart.yaml").read_text(encoding="utf-8").splitlines()
    name, version = (
        line.partition(": ")[2] for line in lines if line.startswith(("name: ", "version: "))
    )
    data = BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as file:
        for path in sorted(chart.rglob("*")):
            if path.is_file():
                entry = tarfile.TarInfo(f"{name}/{path.relative_to(chart)}")
                entry.size, entry.mtime = path.stat().st_size, epoch
                file.addfile(entry, BytesIO(path.read_bytes()))
    packed = output / f"{name}-{version}.tgz"
    packed.write_bytes(package.compress(data.getvalue()))
    return packed


# --- The bill of materials


def read_libraries(program: Path) -> list[Library]:
    """Return what is linked into an ELF file, as the list in its zip says it."""
    with zipfile.ZipFile(program) as file:
        lines = file.read("licenses/sources").decode().splitlines()
    libraries = [Library(*line.split()) for line in lines]
    if unknown := {library.name for library in libraries} ^ {*LICENSES}:
        raise BuildError(
            f"{program}: the license of {', '.join(sorted(unknown))} is not known, or it is missing"
        )
    return libraries


def describe(
    digests: Mapping[str, str], contents: Mapping[str, Contents], epoch: int
) -> dict[str, object]:
    """Return the bill of materials: a document of SPDX 2.3. `digests`: the SHA-256 of each file."""
    libraries = sorted({library for parts in contents.values() for library in parts.libraries})
    document = "SPDXRef-DOCUMENT"
    relations = [(document, "DESCRIBES", _identify(name)) for name in contents]
    for name, parts in contents.items():
        relations += [
            (_identify(name), "STATIC_LINK", _identify(*library)) for library in parts.libraries
        ]
        relations += [(_identify(name), "CONTAINS", _identify(parts.file))] if parts.file else []
    whole = hashlib.sha256(
        "".join(f"{digests[name]}  {name}\n" for name in sorted(digests)).encode()
    ).hexdigest()
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": document,
        "name": f"{NAME}-{__version__}",
        # Of a domain without an owner, as the maintainers' address. Another release has another one
        "documentNamespace": f"https://{NAME}.invalid/spdx/{__version__}/{whole}",
        "creationInfo": {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
            "creators": [OURSELVES, f"Tool: {NAME}-build.py-{__version__}"],
        },
        "packages": [
            *(_describe_file(name, digests[name], contents) for name in contents),
            *(_describe_library(library) for library in libraries),
        ],
        "relationships": [
            {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
            for one, kind, other in relations
        ],
    }


def _describe_file(name: str, sha256: str, contents: Mapping[str, Contents]) -> dict[str, object]:
    parts = contents[name]
    libraries = contents[parts.file].libraries if parts.file else parts.libraries
    return {
        **_describe(_identify(name), name, __version__, OUR_LICENSE),
        "licenseConcluded": " AND ".join(
            [OUR_LICENSE, *(LICENSES[library.name] for library in libraries)]
        ),
        "supplier": OURSELVES,
        "downloadLocation": "NOASSERTION",
        "packageFileName": name,
        "checksums": [{"algorithm": "SHA256", "checksumValue": sha256}],
        **({"comment": parts.comment} if parts.comment else {}),
    }


def _describe_library(library: Library) -> dict[str, object]:
    name, version = library
    locator = f"pkg:deb/debian/{name}@{version.replace('+', '%2B').replace(':', '%3A')}?arch=source"
    return {
        **_describe(_identify(*library), name, version, LICENSES[name]),
        "supplier": "Organization: Debian",
        # It keeps all versions.
        "downloadLocation": f"https://snapshot.debian.org/package/{name}/{version}/",
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": locator,
            }
        ],
    }


def _describe(identifier: str, name: str, version: str, declared: str) -> dict[str, object]:
    return {
        "SPDXID": identifier,
        "name": name,
        "versionInfo": version,
        "filesAnalyzed": False,
        "licenseDeclared": declared,
        "licenseConcluded": declared,
        "copyrightText": "NOASSERTION",
    }


def _identify(*words: str) -> str:
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words))
