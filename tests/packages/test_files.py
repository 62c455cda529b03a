# SPDX-License-Identifier: Apache-2.0
"""What is in the packages, and that nothing of the machine that makes them is."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.packages.conftest import Packages, pack
from tests.support.containers import REPOSITORY

NAME = "resctrl-mon-hook"
PROGRAM = f"usr/libexec/oci/hooks.d/{NAME}.pyz"
SHIPPED, DIGEST = f"usr/lib/{NAME}/{NAME}", f"usr/lib/{NAME}/sha256"
OWNER = f"usr/libexec/oci/hooks.d/{NAME}.owner"
HOOKS_D = f"usr/lib/{NAME}"  # from there scripts copy them, last
LOGS = f"var/log/{NAME}"
MANUAL = f"usr/share/man/man8/{NAME}.8.gz"
SCHEMA = f"usr/share/doc/{NAME}/history.schema.json"
BOTH = {
    SHIPPED,
    DIGEST,
    OWNER,
    f"usr/bin/{NAME}",
    f"{HOOKS_D}/10-{NAME}-kubernetes.json",
    f"{HOOKS_D}/10-{NAME}-podman.json",
    f"usr/lib/systemd/system/{NAME}-reconcile.service",
    f"usr/lib/systemd/system/{NAME}-reconcile.timer",
    f"usr/lib/systemd/system/{NAME}-watch.service",
    f"usr/lib/systemd/system/{NAME}-view.service",
    f"usr/lib/systemd/system/{NAME}-textfile.service",
    f"usr/lib/systemd/system/{NAME}-textfile.timer",
    f"usr/lib/systemd/system/{NAME}-metrics.service",
    f"usr/lib/tmpfiles.d/{NAME}.conf",
    f"usr/share/bash-completion/completions/{NAME}",
    f"usr/share/fish/vendor_completions.d/{NAME}.fish",
    MANUAL,
    SCHEMA,
}
DEB_ALONE = {
    f"usr/share/zsh/vendor-completions/_{NAME}",
    f"usr/share/doc/{NAME}/changelog.gz",
    f"usr/share/doc/{NAME}/copyright",
}
RPM_ALONE = {
    f"usr/share/zsh/site-functions/_{NAME}",
    f"usr/lib/systemd/system-preset/80-{NAME}.preset",
    f"usr/share/licenses/{NAME}/LICENSE",
    f"usr/share/licenses/{NAME}/LGPL-2.1",
    f"usr/share/licenses/{NAME}/copyright",
}
KINDS = ("deb", "rpm")


def output_of(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.fixture(scope="module")
def trees(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What each of them would put into the root directory."""
    deb, rpm = (tmp_path_factory.mktemp(kind) for kind in KINDS)
    output_of("dpkg-deb", "--extract", packages.deb, deb)
    with (rpm / "archive").open("wb") as archive:
        subprocess.run(["rpm2cpio", packages.rpm], stdout=archive, check=True, timeout=300)
    with (rpm / "archive").open("rb") as archive:
        subprocess.run(
            ["cpio", "-idm", "--quiet", "-D", rpm], stdin=archive, check=True, timeout=300
        )
    (rpm / "archive").unlink()
    return {"deb": deb, "rpm": rpm}


def files(tree: Path) -> set[str]:
    return {
        str(path.relative_to(tree))
        for path in tree.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


@pytest.mark.parametrize(("kind", "alone"), [("deb", DEB_ALONE), ("rpm", RPM_ALONE)])
def test_the_files_are_those_of_this_tree_and_only_root_can_write_them(
    trees: dict[str, Path], program: Path, kind: str, alone: set[str]
) -> None:
    tree = trees[kind]
    assert files(tree) == BOTH | alone
    assert [*(tree / "etc" / NAME).iterdir()] == []
    assert (tree / LOGS).exists() == (kind == "rpm"), "of a .deb postinst makes it"
    for path in tree.rglob("*"):
        name = str(path.relative_to(tree))
        is_program = path.is_dir() or name == SHIPPED
        if path.is_symlink():  # to the program, which the scripts put into its place
            continue
        assert stat.S_IMODE(path.stat().st_mode) == (
            0o750 if name == LOGS else 0o755 if is_program else 0o644
        ), path
    assert (tree / SCHEMA).read_bytes() == (REPOSITORY / "docs/history.schema.json").read_bytes()
    assert (tree / SHIPPED).read_bytes() == program.read_bytes()
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    assert (tree / DIGEST).read_text() == f"{digest}  /{PROGRAM}.new\n"
    assert (tree / OWNER).read_text() == f"{kind}\n"
    assert (tree / f"usr/bin/{NAME}").resolve() == (tree / PROGRAM).resolve()
    for directory, place in ("oci-hooks", HOOKS_D), ("packaging/systemd", "usr/lib/systemd/system"):
        for file in (REPOSITORY / directory).iterdir():
            assert (tree / place / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_man_has_no_complaint_of_the_page(trees: dict[str, Path], kind: str) -> None:
    """But that it knows of no other pages here."""
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", trees[kind] / MANUAL],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_version_architecture_and_changes_are_those_of_the_program_and_it_needs_no_python(
    program: Path, packages: Packages, trees: dict[str, Path]
) -> None:
    version = output_of(program, "--version").split()[-1]
    for_dpkg, for_rpm = {"x86_64": ("amd64", "x86_64"), "aarch64": ("arm64", "aarch64")}[
        platform.machine()
    ]
    assert packages.deb.name == f"{NAME}_{version}_{for_dpkg}.deb"
    assert packages.rpm.name == f"{NAME}-{version}-1.{for_rpm}.rpm"
    fields = [
        output_of("dpkg-deb", "--field", packages.deb, name)
        for name in ("Version", "Architecture", "Depends")
    ]
    assert fields == [f"{version}\n", f"{for_dpkg}\n", "\n"]
    assert (
        output_of("rpm", "-qp", "--queryformat=%{VERSION} %{ARCH}", packages.rpm)
        == f"{version} {for_rpm}"
    )
    requires = output_of("rpm", "-qp", "--requires", packages.rpm).splitlines()
    needed = {name for name in requires if not name.startswith("rpmlib(")}
    assert needed == {"/bin/sh", "coreutils"}
    sorted_after = output_of(
        "rpm", "-qp", "--queryformat=[%{REQUIRENAME} %{REQUIREFLAGS:deptype}\n]", packages.rpm
    )
    by_scripts = {line for line in sorted_after.splitlines() if line.startswith("coreutils ")}
    assert by_scripts == {f"coreutils {script}" for script in ("pre", "post", "preun", "postun")}
    points = re.findall(
        r"^\* ([^*]*)$", (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    for text in (
        output_of("gzip", "-dc", trees["deb"] / "usr/share/doc" / NAME / "changelog.gz"),
        output_of("rpm", "-qp", "--changelog", packages.rpm),
    ):
        assert " ".join(points[0].split()) in " ".join(text.split())


def test_the_licenses_and_source_packages_of_all_that_is_linked_in_are_named(
    packages: Packages, trees: dict[str, Path]
) -> None:
    """The program's zip has them, too, for those who get the file alone."""
    text = (trees["deb"] / "usr/share/doc" / NAME / "copyright").read_text()
    licenses = trees["rpm"] / "usr/share/licenses" / NAME
    assert (licenses / "copyright").read_text() == text
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in text
    assert "GNU LESSER GENERAL PUBLIC LICENSE" in (licenses / "LGPL-2.1").read_text()
    built = output_of("dpkg-deb", "--field", packages.deb, "Built-Using").strip()
    versions = re.fullmatch(
        r"(python3\.\d+) \(= (.+)\), (glibc) \(= (.+)\), (zlib) \(= (.+)\)", built
    )
    assert versions is not None, built
    sources = [
        f"{name} {version}"
        for name, version in zip(versions.groups()[::2], versions.groups()[1::2])
    ]
    assert [line.strip(" *") for line in text.splitlines() if line.startswith("  * ")] == sources
    with zipfile.ZipFile(trees["deb"] / SHIPPED) as file:
        assert file.read("licenses/sources").decode().splitlines() == sources
        assert {"licenses/CPython", "licenses/LGPL-2.1"} <= set(file.namelist())


def test_what_is_no_elf_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("#!/bin/true\n")
    with pytest.raises(subprocess.CalledProcessError):
        pack(tmp_path / "file", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_linters_accept_them_and_the_same_is_packed_to_the_same_bytes_elsewhere(
    program: Path, packages: Packages, tmp_path: Path
) -> None:
    """Another directory and time, another umask, locale, time zone and number of cores."""
    tree, output = tmp_path / "elsewhere", tmp_path / "output"
    for name in ("oci-hooks", "packaging"):
        shutil.copytree(REPOSITORY / name, tree / name, copy_function=shutil.copyfile)
    (tree / "docs").mkdir()
    for name in ("CHANGELOG.md", "LICENSE", "docs/history.schema.json"):
        shutil.copy(REPOSITORY / name, tree / name)
    command = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
    settings = {
        "SOURCE_DATE_EPOCH": output_of("git", "-C", REPOSITORY, "log", "-1", "--format=%ct").strip()
    }
    pack(
        program,
        output,
        "--check",
        before=command,
        root=tree,
        umask=0o077,
        TZ="Asia/Kolkata",
        LC_ALL="de_DE",
        **settings,
    )
    for file in packages[1:]:
        assert (output / file.name).read_bytes() == file.read_bytes(), file.suffix
