# SPDX-License-Identifier: Apache-2.0
"""The container runtime interface (CRI), v1, as a client of whatever containerd there is.

    with closing(Cri("unix:///run/containerd.sock", Path("/usr/bin/containerd"))) as cri:
        cri.runtime.RunPodSandbox(config={"metadata": {...}})

The protocol's definition is that of the containerd that is spoken to: its program holds the
descriptor of each protocol that it speaks, compressed, as all programs made with Go's protobuf do.
"""

from __future__ import annotations

import re
import zlib
from functools import cache
from pathlib import Path
from typing import Any, Callable

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

PACKAGE = "runtime.v1"
PATIENCE = 300.0
"""Seconds for one call."""
# RFC 1952: a gzip member's magic, deflate, no flags and no time
_GZIP = re.compile(re.escape(b"\x1f\x8b\x08\x00\x00\x00\x00\x00"))


class Cri:
    """A connection to the containerd behind an address, which runs that program.

    Calls raise grpc.RpcError.
    """

    def __init__(self, address: str, program: Path) -> None:
        self._channel = grpc.insecure_channel(address)
        pool = _pool(program)
        self.runtime = Service(self._channel, pool, "RuntimeService")
        self.image = Service(self._channel, pool, "ImageService")

    def close(self) -> None:
        self._channel.close()


class Service:
    """A service's calls, by their names: each takes the fields of its request,
    and returns its response.

    With `wait_for_ready=True` it waits for a server that does not listen yet, too.
    """

    def __init__(
        self, channel: grpc.Channel, pool: descriptor_pool.DescriptorPool, name: str
    ) -> None:
        service = pool.FindServiceByName(f"{PACKAGE}.{name}")
        for method in service.methods:
            setattr(
                self, method.name, _call(channel, f"/{service.full_name}/{method.name}", method)
            )

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  as the definition has it
        raise AttributeError(f"this containerd's CRI has no {name}")


def _call(channel: grpc.Channel, path: str, method: Any) -> Callable[..., Any]:  # noqa: ANN401  protobuf has no types
    request = message_factory.GetMessageClass(method.input_type)
    response = message_factory.GetMessageClass(method.output_type)
    call = channel.unary_unary(path, request.SerializeToString, response.FromString)

    def send(*, wait_for_ready: bool = False, **fields: Any) -> Any:  # noqa: ANN401  as above
        return call(request(**fields), timeout=PATIENCE, wait_for_ready=wait_for_ready)

    return send


@cache
def _pool(program: Path) -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_definition(program.read_bytes()))
    return pool


def _definition(program: bytes) -> descriptor_pb2.FileDescriptorProto:
    for place in _GZIP.finditer(program):
        try:
            text = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(
                program[place.start() :]
            )
            file = descriptor_pb2.FileDescriptorProto.FromString(text)
        except (zlib.error, DecodeError):
            continue
        if file.package == PACKAGE and file.service:
            del file.dependency[:]  # options of Go's generator alone
            return file
    raise LookupError(f"this containerd does not speak {PACKAGE}")
