# SPDX-License-Identifier: Apache-2.0
"""The models of hook/node/models.py in plain Python, for where pydantic cannot be: this takes their place in the .pyz.

Made by `python3 build.py compile` from the core schemas that pydantic itself executes: change those, not this. The
tests prove both equal in what they accept, in the values, and in the place of the first error.
"""

# ruff: noqa: E501, I001
# fmt: off
from __future__ import annotations

from hook import names
from hook.validation import ABSENT, FLAG, Form, NONE, TEXT, TEXTS, TEXT_OR_NONE, check_dict, check_float, check_int, check_list, check_literal, check_model, check_named, check_nullable

ReconcileRecord = Form("ReconcileRecord", (
    ("version", "version", 1, (check_int, (), 1, 1)),
    ("started_at", "started_at", None, (check_nullable, NONE, (check_float, (), 0, 1000000000000.0))),
    ("ended_at", "ended_at", None, (check_nullable, NONE, (check_float, (), 0, 1000000000000.0))),
    ("seconds", "seconds", 0.0, (check_float, (), 0, 1000000000000.0)),
    ("failed", "failed", 0, (check_int, (), 0, 9223372036854775807)),
    ("left", "left", 0, (check_int, (), 0, 9223372036854775807)),
    ("held", "held", [], (check_list, (), (check_named, (), names.check_container_id))),
    ("outside", "outside", {}, (check_dict, (), TEXT, (check_int, (), 0, 9223372036854775807))),
    ("outside_total", "outside_total", 0, (check_int, (), 0, 9223372036854775807)),
    ("elsewhere", "elsewhere", {}, (check_dict, (), TEXT, (check_int, (), 0, 9223372036854775807))),
    ("looked_at", "looked_at", 0.0, (check_float, (), 0, 1000000000000.0)),
    ("counted", "counted", {}, (check_dict, (), TEXT, TEXTS)),
    ("unread", "unread", 0, (check_int, (), 0, 9223372036854775807)),
    ("actions", "actions", {}, (check_dict, (), TEXT, (check_int, (), 0, 9223372036854775807))),
    ("failures", "failures", {}, (check_dict, (), TEXT, (check_int, (), 0, 9223372036854775807))),
    ("late_cpu", "late_cpu", 0.0, (check_float, (), 0, 1000000000000.0)),
))
WatchRecord = Form("WatchRecord", (
    ("version", "version", 1, (check_int, (), 1, 1)),
    ("started_at", "started_at", 0.0, (check_float, (), 0, 1000000000000.0)),
    ("alive_at", "alive_at", 0.0, (check_float, (), 0, 1000000000000.0)),
    ("moved", "moved", 0, (check_int, (), 0, 9223372036854775807)),
    ("followed", "followed", 0, (check_int, (), 0, 9223372036854775807)),
    ("failed", "failed", 0, (check_int, (), 0, 9223372036854775807)),
    ("overflows", "overflows", 0, (check_int, (), 0, 9223372036854775807)),
))
UnhookedContainer = Form("UnhookedContainer", (
    ("namespace", "namespace", None, TEXT_OR_NONE),
    ("pod", "pod", None, TEXT_OR_NONE),
    ("name", "name", None, TEXT_OR_NONE),
    ("uid", "uid", None, TEXT_OR_NONE),
))
Unhooked = Form("Unhooked", (
    ("version", "version", 1, (check_int, (), 1, 1)),
    ("since", "since", ABSENT, TEXT),
    ("containers", "containers", ABSENT, (check_dict, (), (check_named, (), names.check_container_id), (check_model, (), UnhookedContainer))),
    ("unchecked", "unchecked", ABSENT, (check_int, (), 0, 9223372036854775807)),
    ("rules", "rules", ABSENT, TEXT),
    ("others", "others", ABSENT, (check_list, (), TEXT)),
    ("sandboxes", "sandboxes", [], (check_list, (), TEXT)),
    ("last_started_at", "last_started_at", None, (check_nullable, NONE, (check_float, (), 0, 1000000000000.0))),
    ("last_hooked", "last_hooked", 0.0, (check_float, (), 0, 1000000000000.0)),
))
JobContainer = Form("JobContainer", (("id", "id", ABSENT, TEXT), ("name", "name", None, TEXT_OR_NONE),))
Job = Form("Job", (
    ("version", "version", 1, (check_int, (), 1, 1)),
    ("id", "id", ABSENT, TEXT),
    ("kind", "kind", ABSENT, TEXT),
    ("key", "key", ABSENT, (check_named, (), names.check_container_id)),
    ("namespace", "namespace", None, TEXT_OR_NONE),
    ("pod", "pod", None, TEXT_OR_NONE),
    ("labels", "labels", {}, TEXTS),
    ("containers", "containers", [], (check_list, (), (check_model, (), JobContainer))),
    ("more_containers", "more_containers", 0, (check_int, (), 0, 9223372036854775807)),
    ("begin", "begin", None, TEXT_OR_NONE),
    ("end", "end", ABSENT, TEXT),
    ("seconds", "seconds", None, (check_nullable, NONE, (check_float, (), 0, 1000000000000.0))),
    ("runs", "runs", 1, (check_int, (), 0, 9223372036854775807)),
    ("use", "use", {}, (check_dict, (), TEXT, (check_float, (), 0, 1e+24))),
    ("unknown", "unknown", [], (check_list, (), TEXT)),
    ("late_cpu_seconds", "late_cpu_seconds", 0.0, (check_float, (), 0, 1000000000000.0)),
))
HookProgram = Form("HookProgram", (
    ("path", "path", ABSENT, TEXT),
    ("args", "args", None, (check_nullable, NONE, (check_list, (), TEXT))),
    ("env", "env", None, (check_nullable, NONE, (check_list, (), TEXT))),
    ("timeout", "timeout", None, (check_nullable, NONE, (check_int, (), -9223372036854775808, 9223372036854775807))),
))
HookWhen = Form("HookWhen", (
    ("always", "always", None, (check_nullable, NONE, FLAG)),
    ("annotations", "annotations", None, (check_nullable, NONE, TEXTS)),
    ("commands", "commands", None, (check_nullable, NONE, (check_list, (), TEXT))),
    ("has_bind_mounts", "hasBindMounts", None, (check_nullable, NONE, FLAG)),
))
HookFile = Form("HookFile", (
    ("version", "version", ABSENT, (check_literal, (), "1.0.0")),
    ("hook", "hook", ABSENT, (check_model, (), HookProgram)),
    ("when", "when", None, (check_nullable, NONE, (check_model, (), HookWhen))),
    ("stages", "stages", ABSENT, (check_list, (), TEXT)),
))
