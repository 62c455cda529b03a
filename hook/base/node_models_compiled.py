# SPDX-License-Identifier: Apache-2.0
"""The models of hook/base/node_models.py in plain Python, for where pydantic cannot be: this takes their place in the .pyz.

Made by `python3 build.py compile` from the core schemas that pydantic itself executes: change those, not this. The
tests prove both equal in what they accept, in the values, and in the place of the first error.
"""

# ruff: noqa: E501, I001
# fmt: off
from __future__ import annotations

from hook.base import names
from hook.base.validation import ABSENT, Form, NONE, NO_TYPE, STR, STR_OR_NONE, check_bool, check_dict, check_float, check_int, check_list, check_literal, check_model, check_named, check_nullable, check_str, check_texts

ReconcileRecord = Form("ReconcileRecord", (
    ("version", "version", 1, NO_TYPE, (check_int, 1, 1)),
    ("started_at", "started_at", None, NONE, (check_nullable, (check_float, 0, 1000000000000.0))),
    ("ended_at", "ended_at", None, NONE, (check_nullable, (check_float, 0, 1000000000000.0))),
    ("seconds", "seconds", 0.0, NO_TYPE, (check_float, 0, 1000000000000.0)),
    ("failed", "failed", 0, NO_TYPE, (check_int, 0, 9223372036854775807)),
    ("left", "left", 0, NO_TYPE, (check_int, 0, 9223372036854775807)),
    ("outside", "outside", {}, NO_TYPE, (check_dict, (check_str,), (check_int, 0, 9223372036854775807))),
    ("outside_total", "outside_total", 0, NO_TYPE, (check_int, 0, 9223372036854775807)),
    ("actions", "actions", {}, NO_TYPE, (check_dict, (check_str,), (check_int, 0, 9223372036854775807))),
    ("failures", "failures", {}, NO_TYPE, (check_dict, (check_str,), (check_int, 0, 9223372036854775807))),
    ("late_cpu", "late_cpu", 0.0, NO_TYPE, (check_float, 0, 1000000000000.0)),
))
WatchRecord = Form("WatchRecord", (
    ("version", "version", 1, NO_TYPE, (check_int, 1, 1)),
    ("started_at", "started_at", 0.0, NO_TYPE, (check_float, 0, 1000000000000.0)),
    ("alive_at", "alive_at", 0.0, NO_TYPE, (check_float, 0, 1000000000000.0)),
    ("moved", "moved", 0, NO_TYPE, (check_int, 0, 9223372036854775807)),
    ("failed", "failed", 0, NO_TYPE, (check_int, 0, 9223372036854775807)),
    ("overflows", "overflows", 0, NO_TYPE, (check_int, 0, 9223372036854775807)),
))
LeftUndone = Form("LeftUndone", (
    ("version", "version", 1, NO_TYPE, (check_int, 1, 1)),
    ("failures", "failures", {}, NO_TYPE, (check_texts,)),
    ("left", "left", [], NO_TYPE, (check_list, (check_str,))),
))
UnhookedContainer = Form("UnhookedContainer", (
    ("namespace", "namespace", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("pod", "pod", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("name", "name", None, STR_OR_NONE, (check_nullable, (check_str,))),
))
Unhooked = Form("Unhooked", (
    ("version", "version", 1, NO_TYPE, (check_int, 1, 1)),
    ("since", "since", ABSENT, STR, (check_str,)),
    ("containers", "containers", ABSENT, NO_TYPE, (check_dict, (check_named, names.container_id), (check_model, UnhookedContainer))),
    ("unchecked", "unchecked", ABSENT, NO_TYPE, (check_int, 0, 9223372036854775807)),
    ("rules", "rules", ABSENT, STR, (check_str,)),
    ("others", "others", ABSENT, NO_TYPE, (check_list, (check_str,))),
))
HookProgram = Form("HookProgram", (
    ("path", "path", ABSENT, STR, (check_str,)),
    ("args", "args", None, NONE, (check_nullable, (check_list, (check_str,)))),
    ("env", "env", None, NONE, (check_nullable, (check_list, (check_str,)))),
    ("timeout", "timeout", None, NONE, (check_nullable, (check_int, None, None))),
))
HookWhen = Form("HookWhen", (
    ("always", "always", None, NONE, (check_nullable, (check_bool,))),
    ("annotations", "annotations", None, NONE, (check_nullable, (check_texts,))),
    ("commands", "commands", None, NONE, (check_nullable, (check_list, (check_str,)))),
    ("has_bind_mounts", "hasBindMounts", None, NONE, (check_nullable, (check_bool,))),
))
HookFile = Form("HookFile", (
    ("version", "version", ABSENT, NO_TYPE, (check_literal, "1.0.0")),
    ("hook", "hook", ABSENT, NO_TYPE, (check_model, HookProgram)),
    ("when", "when", ABSENT, NO_TYPE, (check_model, HookWhen)),
    ("stages", "stages", ABSENT, NO_TYPE, (check_list, (check_str,))),
))
