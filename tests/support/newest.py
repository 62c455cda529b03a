# SPDX-License-Identifier: Apache-2.0
"""Debian's newest suite as a root: containerd 2 with its NRI, runc, crun, Python, Prometheus 3,
and a program of ours.

That is made of Debian's Go sources, of which those alone are unpacked that it needs (all would be
3.5 GB); neither they nor Go are kept.
"""

from __future__ import annotations

from pathlib import Path

from tests.support import debian

SUITE = "testing"
PACKAGES = ("containerd", "crun", "golang-go", "mount", "prometheus", "python3", "runc")
SOURCES = (
    "golang-github-containerd-log-dev",
    "golang-github-containerd-nri-dev",
    "golang-github-containerd-ttrpc-dev",
    "golang-github-containers-common-dev",
    "golang-github-containers-storage-dev",
    "golang-github-fsnotify-fsnotify-dev",
    "golang-github-gogo-protobuf-dev",
    "golang-github-golang-protobuf-1-5-dev",
    "golang-github-kubernetes-cri-api-dev",
    "golang-github-opencontainers-specs-dev",
    "golang-github-sirupsen-logrus-dev",
    "golang-golang-x-net-dev",
    "golang-golang-x-sys-dev",
    "golang-golang-x-text-dev",
    "golang-google-genproto-dev",
    "golang-google-grpc-dev",
    "golang-google-protobuf-dev",
)
PROGRAMS = {
    "hook-injector": Path(__file__).parents[1] / "containerd" / "hook_injector" / "main.go",
}
"""What lies in its /usr/local/bin. They need no library, and run outside of it as well."""
# The root is "$1".
BUILD = """\
set -e
mkdir "$1/build"
cd "$1/build"
APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get download -qq {sources}
for package in *.deb; do dpkg-deb -x "$package" "$1"; done
{programs}
cd "$1"
rm -r build usr/lib/go* usr/share/go* usr/share/doc/* usr/share/man/*
"""
PROGRAM = """\
cat >{name}.go <<'END'
{source}
END
chroot "$1" env GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE=/build/go CGO_ENABLED=0 \\
    GOTELEMETRY=off \\
    go build -o /usr/local/bin/{name} /build/{name}.go >log 2>&1 ||
    {{ echo "E: {name} cannot be built: $(tail -n 1 log)" >&2; exit 1; }}
"""


def ready() -> Path:
    """The directory of the root, as debian.root has it."""
    return debian.root(SUITE, *_options())


def find() -> Path | None:
    """The same if it has been made; None if it has not."""
    return debian.find(SUITE, *_options())


def _options() -> tuple[str, ...]:
    programs = [
        PROGRAM.format(name=name, source=source.read_text())
        for name, source in sorted(PROGRAMS.items())
    ]
    build = BUILD.format(sources=" ".join(SOURCES), programs="".join(programs))
    return "--variant=essential", f"--include={','.join(PACKAGES)}", f"--customize-hook={build}"


def program(name: str) -> Path:
    return ready() / "usr/local/bin" / name
