# SPDX-License-Identifier: Apache-2.0
"""Upgrades and downgrades while containers live: what a version does with the records of a later one.

`newer` writes records with a further field; `next_records` also writes them as `version` 2, which the present one does
not know. The .deb and the RPM hold the same program; test_life.py has both replace it under containers.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.packages.conftest import FURTHER, Packages
from tests.packages.machine import ENERGY, Machine

NAME = "resctrl-mon-hook"
RUN = f"/run/{NAME}"


def install(machine: Machine, packages: Packages) -> None:
    """Whatever version is there now. dpkg asks for --force-downgrade, as apt does for --allow-downgrades."""
    if not (machine.shared / packages.deb.name).exists():
        shutil.copy(packages.deb, machine.shared)
    machine.dpkg("-i", "--force-downgrade", packages.deb.name)
    assert machine.run(NAME, "--version").stdout == f"{NAME} {packages.version}\n"


def record_path(machine: Machine, key: str) -> Path:
    return machine.at(f"{RUN}/groups") / f"{key}.json"


def record(machine: Machine, key: str) -> Any:  # noqa: ANN401  JSON
    return json.loads(record_path(machine, key).read_text())


def shown(machine: Machine) -> dict[str, Any]:
    """The keys that `list` shows."""
    return {key["key"]: key for key in listed(machine)["keys"]}


def listed(machine: Machine) -> Any:  # noqa: ANN401  JSON
    return json.loads(machine.run(NAME, "list", "--json").stdout)


def mon_groups(machine: Machine) -> dict[str, Any]:
    """Each with its RMID and its tasks."""
    return {path: group for path, group in machine.resctrl.groups().items() if path != "/"}


def find_aside(machine: Machine) -> list[Path]:
    return sorted(machine.at(f"{RUN}/groups").glob("*.json.unreadable-*"))


def test_records_with_further_fields_are_read_and_their_use_goes_on(
    machine: Machine, packages: Packages, newer: Packages
) -> None:
    """Up, down and up again: one container of each version lives through it."""
    install(machine, packages)
    web = machine.podman_run("web")
    machine.spend(web, 5)
    install(machine, newer)
    db = machine.podman_run("db")
    machine.spend(db, 7)
    before = mon_groups(machine)
    assert FURTHER in record(machine, db)
    assert FURTHER in record(machine, db)["members"][db]
    assert FURTHER not in record(machine, web), "a record is written again only when something changes"

    for version in packages, newer, packages:
        install(machine, version)
        assert machine.run(NAME, "reconcile").stdout == "", "there is nothing to repair"
        machine.spend(db, 1)
        assert {key: (it["state"], it["members_alive"]) for key, it in shown(machine).items()} == {
            web: ("live", 1),
            db: ("live", 1),
        }
        assert mon_groups(machine) == before
        assert listed(machine)["unreadable"] == []
    assert {key: it["use"][ENERGY]["value"] for key, it in shown(machine).items()} == {web: 5, db: 10}

    machine.podman_rm("web", "db")
    assert machine.groups() == {}
    assert {key: (it["state"], it["use"][ENERGY]["value"]) for key, it in shown(machine).items()} == {
        web: ("completed", 5),
        db: ("completed", 10),
    }
    assert FURTHER not in record(machine, db), "the version that writes a record drops what it does not know"


def test_a_record_of_a_version_that_is_too_new_is_set_aside_and_rebuilt(
    machine: Machine, packages: Packages, next_records: Packages
) -> None:
    install(machine, next_records)
    ended = machine.podman_run("ended")
    machine.podman_rm("ended")
    web = machine.podman_run("web")
    machine.spend(web, 5)
    theirs = record_path(machine, web).read_text()
    assert json.loads(theirs)["version"] == 2
    before = machine.resctrl.groups()[f"/mon_groups/oci-{web}"]

    install(machine, packages)
    assert {it["file"] for it in listed(machine)["unreadable"]} == {f"{RUN}/groups/{key}.json" for key in (web, ended)}
    doctor = machine.run(NAME, "doctor", check=False).stdout
    assert f"groups/{web}.json: " in doctor
    assert "version" in doctor.partition(f"groups/{web}.json: ")[2].splitlines()[0]
    assert record_path(machine, web).read_text() == theirs, "people's commands change nothing"

    said = machine.run(NAME, "reconcile", check=False).stdout
    assert web in said
    asides = {path.name.partition(".")[0]: path.read_text() for path in find_aside(machine)}
    assert asides.keys() == {web, ended}
    assert asides[web] == theirs, "nothing of it is lost"
    assert machine.resctrl.groups()[f"/mon_groups/oci-{web}"] == before, "the same RMID and the same tasks"
    assert {key: (it["state"], it["members_alive"]) for key, it in shown(machine).items()} == {web: ("live", 1)}
    assert record(machine, web)["version"] == 1
    assert list(record(machine, web)["members"]) == [web]
    assert json.loads((machine.at(f"{RUN}/members") / f"{web}.json").read_text()) == {"version": 1, "key": web}
    assert listed(machine)["unreadable"] == []
    assert machine.run(NAME, "reconcile").stdout == ""

    machine.spend(web, 3)
    use = shown(machine)[web]["use"][ENERGY]
    assert (use["value"], use["at_least"]) == (3, True), "what it used earlier is in the file that was set aside"
    install(machine, next_records)  # up again: the rebuilt record is used
    assert machine.run(NAME, "reconcile").stdout == ""
    assert {key: (it["state"], it["members_alive"]) for key, it in shown(machine).items()} == {web: ("live", 1)}
    machine.podman_rm("web")
    assert machine.groups() == {}
