"""What stands between whatever goes wrong and the container."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from hook import entry, report


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    former = os.umask(0o022)
    yield
    os.umask(former)


def test_no_defect_fails_a_container_not_even_one_in_what_reports_defects(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(_self: object, _arguments: list[str]) -> int:
        raise MemoryError("none left")

    monkeypatch.setattr(entry._Invocation, "run", run)
    monkeypatch.setattr(report, "say", lambda text: os.write(2, text.encode()))
    assert entry.main(["createRuntime", "--strict"]) == 0
    assert "none left" in capfd.readouterr().err
