# SPDX-License-Identifier: Apache-2.0
"""The models of hook/base/models.py in plain Python, for where pydantic cannot be: this takes their place in the .pyz.

Made by `python3 build.py compile` from the core schemas that pydantic itself executes: change those, not this. The
tests prove both equal in what they accept, in the values, and in the place of the first error.
"""

# ruff: noqa: E501, I001
# fmt: off
from __future__ import annotations

from hook.base import names
from hook.base.validation import ABSENT, BOOL, Form, Model, NONE, NO_TYPE, STR, STR_OR_NONE, ValidationError, check_bool, check_dict, check_float, check_int, check_list, check_literal, check_model, check_named, check_nullable, check_str, check_texts

__all__ = ["Model", "ValidationError"]

State = Form("State", (
    ("oci_version", "ociVersion", ABSENT, STR, (check_str,)),
    ("id", "id", ABSENT, NO_TYPE, (check_named, names.container_id)),
    ("status", "status", ABSENT, STR, (check_str,)),
    ("pid", "pid", None, NONE, (check_nullable, (check_int, 0, 2147483647))),
    ("bundle", "bundle", ABSENT, NO_TYPE, (check_named, names.path)),
    ("annotations", "annotations", None, NONE, (check_nullable, (check_texts,))),
))
Annotations = Form("Annotations", (
    ("manager", "io.container.manager", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("pod_uid", "io.kubernetes.pod.uid", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("pod_namespace", "io.kubernetes.pod.namespace", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("pod_name", "io.kubernetes.pod.name", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("container_name", "io.kubernetes.container.name", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("sandbox_id", "io.kubernetes.cri-o.SandboxID", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("cri_sandbox_uid", "io.kubernetes.cri.sandbox-uid", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("cri_sandbox_namespace", "io.kubernetes.cri.sandbox-namespace", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("cri_sandbox_name", "io.kubernetes.cri.sandbox-name", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("cri_container_name", "io.kubernetes.cri.container-name", None, STR_OR_NONE, (check_nullable, (check_str,))),
))
IntelRdt = Form("IntelRdt", (
    ("clos_id", "closID", None, STR_OR_NONE, (check_nullable, (check_str,))),
))
Linux = Form("Linux", (
    ("intel_rdt", "intelRdt", None, NONE, (check_nullable, (check_model, IntelRdt))),
    ("cgroups_path", "cgroupsPath", None, STR_OR_NONE, (check_nullable, (check_str,))),
))
Config = Form("Config", (
    ("linux", "linux", None, NONE, (check_nullable, (check_model, Linux))),
    ("annotations", "annotations", None, NONE, (check_nullable, (check_texts,))),
))
Options = Form("Options", (
    ("resctrl_root", "resctrl_root", "/sys/fs/resctrl", NO_TYPE, (check_named, names.directory)),
    ("run_dir", "run_dir", "/run/resctrl-mon-hook", NO_TYPE, (check_named, names.directory)),
    ("group_prefix", "group_prefix", "oci-", NO_TYPE, (check_named, names.group_prefix)),
    ("key", "key", "auto", NO_TYPE, (check_literal, "auto", "container", "sandbox")),
    ("containers", "containers", "all", NO_TYPE, (check_literal, "all", "kubernetes", "podman")),
    ("namespace", "namespace", [], NO_TYPE, (check_list, (check_str,))),
    ("annotation", "annotation", {}, NO_TYPE, (check_texts,)),
    ("monitor", "monitor", "all", NO_TYPE, (check_literal, "all", "opt-in", "opt-out")),
    ("linger", "linger", 0, NO_TYPE, (check_int, 0, 86400)),
    ("snapshot_ttl", "snapshot_ttl", 300, NO_TYPE, (check_int, 0, 604800)),
    ("lock_timeout", "lock_timeout", 1.0, NO_TYPE, (check_float, 0, 60)),
    ("rmid_wait", "rmid_wait", 1.5, NO_TYPE, (check_float, 0, 60)),
    ("strict", "strict", False, BOOL, (check_bool,)),
))
Member = Form("Member", (
    ("pid", "pid", ABSENT, NO_TYPE, (check_int, 1, 2147483647)),
    ("starttime", "starttime", ABSENT, NO_TYPE, (check_int, 0, 9223372036854775807)),
    ("group", "group", ABSENT, NO_TYPE, (check_named, names.mon_group)),
    ("cgroup", "cgroup", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("taken_from", "taken_from", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("name", "name", None, STR_OR_NONE, (check_nullable, (check_str,))),
))
MonGroup = Form("MonGroup", (
    ("path", "path", ABSENT, NO_TYPE, (check_named, names.mon_group)),
    ("ctrl_group", "ctrl_group", ABSENT, NO_TYPE, (check_named, names.ctrl_group)),
    ("inode", "inode", None, NONE, (check_nullable, (check_int, 0, 9223372036854775807))),
    ("begin", "begin", None, NONE, (check_nullable, (check_texts,))),
    ("end", "end", None, NONE, (check_nullable, (check_texts,))),
    ("before", "before", {}, NO_TYPE, (check_texts,)),
    ("known", "known", {}, NO_TYPE, (check_texts,)),
    ("last", "last", None, NONE, (check_nullable, (check_texts,))),
))
KeyState = Form("KeyState", (
    ("version", "version", 1, NO_TYPE, (check_int, 1, 1)),
    ("key", "key", ABSENT, NO_TYPE, (check_named, names.container_id)),
    ("kind", "kind", ABSENT, NO_TYPE, (check_literal, "pod", "container", "sandbox")),
    ("pod_namespace", "pod_namespace", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("pod_name", "pod_name", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("recovering", "recovering", False, BOOL, (check_bool,)),
    ("generation", "generation", 0, NO_TYPE, (check_int, 0, 9223372036854775807)),
    ("created_at", "created_at", "", STR, (check_str,)),
    ("created_boottime", "created_boottime", None, NONE, (check_nullable, (check_float, 0, 1000000000000.0))),
    ("completed_at", "completed_at", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("completed_boottime", "completed_boottime", None, NONE, (check_nullable, (check_float, 0, 1000000000000.0))),
    ("cgroup", "cgroup", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("lingering_since", "lingering_since", None, NONE, (check_nullable, (check_float, 0, 1000000000000.0))),
    ("lingering_until", "lingering_until", None, NONE, (check_nullable, (check_float, 0, 1000000000000.0))),
    ("late_cpu", "late_cpu", 0.0, NO_TYPE, (check_float, 0, 1000000000000.0)),
    ("groups", "groups", [], NO_TYPE, (check_list, (check_model, MonGroup))),
    ("members", "members", {}, NO_TYPE, (check_dict, (check_named, names.member), (check_model, Member))),
))
Index = Form("Index", (
    ("version", "version", 1, NO_TYPE, (check_int, 1, 1)),
    ("key", "key", ABSENT, NO_TYPE, (check_named, names.container_id)),
))
Failure = Form("Failure", (
    ("version", "version", 1, NO_TYPE, (check_int, 1, 1)),
    ("container", "container", ABSENT, STR, (check_str,)),
    ("stage", "stage", ABSENT, STR, (check_str,)),
    ("reason", "reason", ABSENT, STR, (check_str,)),
    ("problem", "problem", ABSENT, STR, (check_str,)),
    ("tried", "tried", "", STR, (check_str,)),
    ("kernel", "kernel", "", STR, (check_str,)),
    ("hint", "hint", "", STR, (check_str,)),
    ("monitored", "monitored", False, BOOL, (check_bool,)),
    ("time", "time", "", STR, (check_str,)),
    ("boottime", "boottime", None, NONE, (check_nullable, (check_float, 0, 1000000000000.0))),
    ("bundle", "bundle", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("pid", "pid", None, NONE, (check_nullable, (check_int, 1, 2147483647))),
    ("starttime", "starttime", None, NONE, (check_nullable, (check_int, 0, 9223372036854775807))),
    ("key", "key", None, NONE, (check_nullable, (check_named, names.container_id))),
    ("kind", "kind", None, NONE, (check_nullable, (check_literal, "pod", "container", "sandbox"))),
    ("namespace", "namespace", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("pod", "pod", None, STR_OR_NONE, (check_nullable, (check_str,))),
    ("name", "name", None, STR_OR_NONE, (check_nullable, (check_str,))),
))
