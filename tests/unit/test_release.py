# SPDX-License-Identifier: Apache-2.0
"""The files of a release: their names, the chart's archive, the bill of materials, and the sums."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import package
import pytest
import release
from release import Contents, Library

from hook import __version__
from native import native
from pyz import BuildError, archive
from tests.support import chart
from tests.unit.documents import first_words, page
from tests.unit.files import ROOT, start

EPOCH = 1_795_824_000
LIBRARIES = ["python3.13 3.13.5-2+deb13u5", "glibc 2.41-12", "zlib 1:1.3.dfsg+really1.3.1-1"]
PYTHONS = {"/usr/bin/python3.9": "3.9.25", "/usr/bin/python3.14": "3.14.1"}


def make_program(path: Path, libraries: Iterable[str]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("licenses/sources", "".join(f"{line}\n" for line in libraries))
    return path


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A release, of which only the chart's archive, the bill of materials and the sums are real."""

    def build(*, output: Path, interpreters: dict[str, str], release: bool) -> Path:
        assert (interpreters, release) == (PYTHONS, True)
        output.write_bytes(b"pyz")
        return output

    def build_for(machine: str, target: Path, *, newest: bool) -> Path:
        assert newest
        return make_program(
            target,
            LIBRARIES if machine == "x86_64" else [LIBRARIES[0], "glibc 2.36-9", LIBRARIES[2]],
        )

    def pack(program: Path, output: Path, kinds: Iterable[str], *, check: bool) -> list[Path]:
        assert ([*kinds], check) == (["deb", "rpm"], True)
        for_dpkg, for_rpm = {"x86_64": ("amd64", "x86_64"), "aarch64": ("arm64", "aarch64")}[
            program.name[17:]
        ]
        names = [
            f"{package.NAME}_{__version__}_{for_dpkg}.deb",
            f"{package.NAME}-{__version__}-1.{for_rpm}.rpm",
        ]
        for name in names:
            (output / name).write_text(name)
        return [output / name for name in names]

    monkeypatch.setattr(archive, "build", build)
    monkeypatch.setattr(native, "build_for", build_for)
    monkeypatch.setattr(package, "package", pack)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    output = tmp_path / "dist/release"
    output.mkdir(parents=True)
    (output / "of-an-earlier-release").touch()
    release.make(output, PYTHONS)
    return output


def test_release_has_the_files_that_install_names_and_no_other(made: Path) -> None:
    names = [
        name.replace("VERSION", __version__)
        for name in first_words(page("docs/install.md"), "file")
    ]
    assert sorted(path.name for path in made.iterdir()) == sorted(names)


def test_sums_are_those_of_all_other_files(made: Path) -> None:
    done = start(["sha256sum", "--check", "SHA256SUMS"], cwd=made)
    assert (done.returncode, done.stderr) == (0, "")
    checked = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert checked == sorted({path.name for path in made.iterdir()} - {"SHA256SUMS"})


def test_same_files_give_the_same_bill_and_another_file_another_namespace(made: Path) -> None:
    first = (made / release.SBOM).read_bytes()
    release.make(made, PYTHONS)
    assert (made / release.SBOM).read_bytes() == first
    contents = {"x.pyz": Contents()}
    bills = [
        release.describe({"x.pyz": digit * 64}, contents, EPOCH)["documentNamespace"]
        for digit in "aab"
    ]
    assert bills[0] == bills[1] != bills[2]


@pytest.mark.parametrize(
    ("changes", "chart_version", "fault"),
    [
        (f"## {__version__}, not released yet", __version__, "has no `## .*, YYYY-MM-DD`"),
        (f"## {__version__}1, 2026-11-28", __version__, "has no `## .*, YYYY-MM-DD`"),
        (
            f"## {__version__}, 2026-11-28",
            f"{__version__}1",
            "Chart.yaml: version and appVersion must be",
        ),
    ],
)
def test_version_without_a_date_and_chart_of_another_version_are_refused(
    changes: str, chart_version: str, fault: str
) -> None:
    described = f"apiVersion: v2\nversion: {chart_version}\nappVersion: {__version__}\n"
    with pytest.raises(BuildError, match=fault):
        release.check_version(f"# Changes\n\n{changes}\n", described)


# --- The bill of materials, by what SPDX 2.3 asks for: its chapters 6, 7 and 11


@pytest.fixture
def bill(made: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((made / release.SBOM).read_text())
    return read


def test_bill_has_the_required_fields(bill: dict[str, Any]) -> None:
    assert (bill["spdxVersion"], bill["dataLicense"], bill["SPDXID"]) == (
        "SPDX-2.3",
        "CC0-1.0",
        "SPDXRef-DOCUMENT",
    )
    assert bill["name"]
    assert re.fullmatch(r"https://[^#\s]+", bill["documentNamespace"])
    assert bill["creationInfo"]["created"] == "2026-11-28T00:00:00Z"
    assert all(
        re.match("(Organization|Tool): .", creator) for creator in bill["creationInfo"]["creators"]
    )
    for part in bill["packages"]:
        assert part["name"]
        assert re.fullmatch(r"SPDXRef-[a-zA-Z0-9.-]+", part["SPDXID"])
        assert re.fullmatch(r"https://[^\s]+|NOASSERTION", part["downloadLocation"])
        assert part["filesAnalyzed"] is False, "else it needs a verification code"
        assert part["versionInfo"]
        assert part["supplier"].startswith("Organization: ")


def test_identifiers_of_the_bill_are_unique_and_relations_use_no_other(
    bill: dict[str, Any],
) -> None:
    identifiers = [bill["SPDXID"], *(part["SPDXID"] for part in bill["packages"])]
    assert len({*identifiers}) == len(identifiers)
    ends = {
        relationship[end]
        for relationship in bill["relationships"]
        for end in ("spdxElementId", "relatedSpdxElement")
    }
    assert ends == {*identifiers}


def test_bill_has_each_file_with_its_sum_and_its_libraries_as_they_were_built_in(
    bill: dict[str, Any], made: Path
) -> None:
    names = {part["SPDXID"]: f"{part['name']} {part['versionInfo']}" for part in bill["packages"]}
    names |= {
        part["SPDXID"]: part["name"] for part in bill["packages"] if "packageFileName" in part
    }
    triples = [
        (
            names.get(relationship["spdxElementId"], "document"),
            relationship["relationshipType"],
            names[relationship["relatedSpdxElement"]],
        )
        for relationship in bill["relationships"]
    ]
    files = {path.name for path in made.iterdir()} - {"SHA256SUMS", release.SBOM}
    assert {
        other for one, kind, other in triples if kind == "DESCRIBES" and one == "document"
    } == files
    linked = {
        one: [part for program, kind, part in triples if program == one and kind == "STATIC_LINK"]
        for one in files
    }
    assert linked["resctrl-mon-hook-x86_64"] == LIBRARIES
    assert linked["resctrl-mon-hook-aarch64"] == [LIBRARIES[0], "glibc 2.36-9", LIBRARIES[2]]
    assert (
        f"resctrl-mon-hook_{__version__}_arm64.deb",
        "CONTAINS",
        "resctrl-mon-hook-aarch64",
    ) in triples
    sums = {part["name"]: part["checksums"] for part in bill["packages"] if "checksums" in part}
    assert sums == {
        name: [{"algorithm": "SHA256", "checksumValue": release.digest(made / name)}]
        for name in sorted(files)
    }


def test_bill_names_the_license_of_each_part_and_of_the_whole(bill: dict[str, Any]) -> None:
    licenses = {part["name"]: part["licenseConcluded"] for part in bill["packages"]}
    assert (licenses["glibc"], licenses["zlib"]) == ("LGPL-2.1-or-later", "Zlib")
    assert licenses["resctrl-mon-hook.pyz"] == "Apache-2.0"
    whole = "Apache-2.0 AND Python-2.0 AND MIT AND LGPL-2.1-or-later AND Zlib"
    assert (
        licenses["resctrl-mon-hook-x86_64"]
        == licenses[f"resctrl-mon-hook_{__version__}_amd64.deb"]
        == whole
    )
    # Debian's names of the same licenses
    names = re.search(
        r"^License: (.+ and .+)$", (ROOT / "packaging/copyright").read_text(), re.MULTILINE
    )
    assert names is not None
    debian = (
        names[1].replace("LGPL-2.1+", "LGPL-2.1-or-later").replace("Expat", "MIT").split(" and ")
    )
    assert sorted(debian) == sorted(whole.split(" AND "))


@pytest.mark.parametrize("libraries", [LIBRARIES[:2], [*LIBRARIES, "bzip2 1.0.8-6"]])
def test_library_without_a_license_and_a_missing_one_are_refused(
    libraries: list[str], tmp_path: Path
) -> None:
    program = make_program(tmp_path / "program", libraries)
    with pytest.raises(BuildError, match=r"the license of (bzip2|zlib)"):
        release.read_libraries(program)


def test_locator_of_a_library_is_a_purl(bill: dict[str, Any]) -> None:
    locators = [
        part["externalRefs"][0]["referenceLocator"]
        for part in bill["packages"]
        if "externalRefs" in part
    ]
    assert "pkg:deb/debian/zlib@1%3A1.3.dfsg%2Breally1.3.1-1?arch=source" in locators
    assert (
        release._identify(*Library("zlib", "1:1.3.dfsg+really1.3.1-1"))
        == "SPDXRef-zlib-1-1.3.dfsg-really1.3.1-1"
    )


# --- The chart's archive


def test_archive_of_the_chart_has_its_files_below_its_name(tmp_path: Path) -> None:
    packed = release.pack_chart(release.CHART, tmp_path, EPOCH)
    assert packed.name == f"resctrl-mon-hook-{__version__}.tgz"
    with tarfile.open(packed) as file:
        entries = {entry.name: entry for entry in file}
        held = {name: (file.extractfile(entry) or file).read() for name, entry in entries.items()}  # type: ignore[union-attr]
    files = [path for path in release.CHART.rglob("*") if path.is_file()]
    assert held == {
        f"resctrl-mon-hook/{path.relative_to(release.CHART)}": path.read_bytes() for path in files
    }
    assert {(entry.mtime, entry.mode, entry.uid, entry.uname) for entry in entries.values()} == {
        (EPOCH, 0o644, 0, "")
    }


def test_same_chart_elsewhere_at_another_time_gives_the_same_bytes(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(release.CHART, elsewhere, copy_function=shutil.copyfile)
    (elsewhere / "values.yaml").chmod(0o600)
    first = release.pack_chart(release.CHART, tmp_path, EPOCH).read_bytes()
    assert release.pack_chart(elsewhere, tmp_path, EPOCH).read_bytes() == first
    assert release.pack_chart(elsewhere, tmp_path, EPOCH + 1).read_bytes() != first


# --- The workflow


def test_workflow_builds_attests_and_publishes_what_the_release_has() -> None:
    workflow = chart.load(ROOT / ".github/workflows/release.yml")
    (job,) = workflow["jobs"].values()
    assert job["permissions"] == {
        "attestations": "write",
        "contents": "write",
        "id-token": "write",
        "packages": "write",
    }
    attested = [
        step["with"]
        for step in job["steps"]
        if step.get("uses", "").startswith("actions/attest-build-prov")
    ]
    assert attested[0] == {"subject-checksums": "dist/release/SHA256SUMS"}
    lines = "\n".join(step.get("run", "") for step in job["steps"])
    assert "build.py release" in lines
    assert "gh release create" in lines
