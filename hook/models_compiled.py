# SPDX-License-Identifier: Apache-2.0
"""The models of hook/models.py in plain Python, for where pydantic cannot be: this takes their place in the .pyz.

Made by `python3 build.py compile` from the core schemas that pydantic itself executes: change those, not this. The
tests prove both equal in what they accept, in the values, and in the place of the first error.
"""

# ruff: noqa: E501, I001
# fmt: off
from __future__ import annotations

from hook import names
from hook.validation import ABSENT, FLAG, Form, Model, NONE, TEXT, TEXTS, TEXT_OR_NONE, ValidationError, check_dict, check_float, check_int, check_list, check_literal, check_model, check_named, check_nullable

__all__ = ["Model", "ValidationError"]

State = Form("State", (
    ("oci_version", "ociVersion", ABSENT, TEXT),
    ("id", "id", ABSENT, (check_named, (), names.check_container_id)),
    ("status", "status", ABSENT, TEXT),
    ("pid", "pid", None, (check_nullable, NONE, (check_int, (), 0, 2147483647))),
    ("bundle", "bundle", ABSENT, (check_named, (), names.check_path)),
    ("annotations", "annotations", None, (check_nullable, NONE, TEXTS)),
))
Annotations = Form("Annotations", (
    ("manager", "io.container.manager", None, TEXT_OR_NONE),
    ("pod_uid", "io.kubernetes.pod.uid", None, TEXT_OR_NONE),
    ("pod_namespace", "io.kubernetes.pod.namespace", None, TEXT_OR_NONE),
    ("pod_name", "io.kubernetes.pod.name", None, TEXT_OR_NONE),
    ("container_name", "io.kubernetes.container.name", None, TEXT_OR_NONE),
    ("sandbox_id", "io.kubernetes.cri-o.SandboxID", None, TEXT_OR_NONE),
    ("cri_sandbox_uid", "io.kubernetes.cri.sandbox-uid", None, TEXT_OR_NONE),
    ("cri_sandbox_namespace", "io.kubernetes.cri.sandbox-namespace", None, TEXT_OR_NONE),
    ("cri_sandbox_name", "io.kubernetes.cri.sandbox-name", None, TEXT_OR_NONE),
    ("cri_container_name", "io.kubernetes.cri.container-name", None, TEXT_OR_NONE),
))
IntelRdt = Form("IntelRdt", (("clos_id", "closID", None, TEXT_OR_NONE),))
Linux = Form("Linux", (
    ("intel_rdt", "intelRdt", None, (check_nullable, NONE, (check_model, (), IntelRdt))),
    ("cgroups_path", "cgroupsPath", None, TEXT_OR_NONE),
))
Config = Form("Config", (
    ("linux", "linux", None, (check_nullable, NONE, (check_model, (), Linux))),
    ("annotations", "annotations", None, (check_nullable, NONE, TEXTS)),
))
Options = Form("Options", (
    ("resctrl_root", "resctrl_root", "/sys/fs/resctrl", (check_named, (), names.check_directory)),
    ("run_dir", "run_dir", "/run/resctrl-mon-hook", (check_named, (), names.check_directory)),
    ("group_prefix", "group_prefix", "oci-", (check_named, (), names.check_group_prefix)),
    ("key", "key", "auto", (check_literal, (), "auto", "container", "sandbox")),
    ("containers", "containers", "all", (check_literal, (), "all", "kubernetes", "podman")),
    ("namespace", "namespace", [], (check_list, (), TEXT)),
    ("annotation", "annotation", {}, TEXTS),
    ("monitor", "monitor", "all", (check_literal, (), "all", "opt-in", "opt-out")),
    ("linger", "linger", 0, (check_int, (), 0, 86400)),
    ("snapshot_ttl", "snapshot_ttl", 300, (check_int, (), 0, 604800)),
    ("lock_timeout", "lock_timeout", 1.0, (check_float, (), 0, 60)),
    ("rmid_wait", "rmid_wait", 1.5, (check_float, (), 0, 60)),
    ("history", "history", "", (check_named, (), names.check_file)),
    ("strict", "strict", False, FLAG),
))
Member = Form("Member", (
    ("pid", "pid", ABSENT, (check_int, (), 1, 2147483647)),
    ("starttime", "starttime", ABSENT, (check_int, (), 0, 9223372036854775807)),
    ("group", "group", ABSENT, (check_named, (), names.check_mon_group)),
    ("cgroup", "cgroup", None, TEXT_OR_NONE),
    ("taken_from", "taken_from", None, TEXT_OR_NONE),
    ("name", "name", None, TEXT_OR_NONE),
))
MonGroup = Form("MonGroup", (
    ("path", "path", ABSENT, (check_named, (), names.check_mon_group)),
    ("ctrl_group", "ctrl_group", ABSENT, (check_named, (), names.check_ctrl_group)),
    ("inode", "inode", None, (check_nullable, NONE, (check_int, (), 0, 9223372036854775807))),
    ("begin", "begin", None, (check_nullable, NONE, TEXTS)),
    ("end", "end", None, (check_nullable, NONE, TEXTS)),
    ("before", "before", {}, TEXTS),
    ("known", "known", {}, TEXTS),
    ("last", "last", None, (check_nullable, NONE, TEXTS)),
))
Returned = Form("Returned", (
    ("at", "at", ABSENT, TEXT),
    ("boottime", "boottime", ABSENT, (check_float, (), 0, 1000000000000.0)),
    ("use", "use", ABSENT, (check_model, (), MonGroup)),
    ("late_cpu", "late_cpu", 0.0, (check_float, (), 0, 1000000000000.0)),
))
Owed = Form("Owed", (("lines", "lines", ABSENT, (check_list, (), TEXT)), ("why", "why", ABSENT, TEXT),))
KeyState = Form("KeyState", (
    ("version", "version", 1, (check_int, (), 1, 1)),
    ("key", "key", ABSENT, (check_named, (), names.check_container_id)),
    ("kind", "kind", ABSENT, (check_literal, (), "pod", "container", "sandbox", "job")),
    ("pod_namespace", "pod_namespace", None, TEXT_OR_NONE),
    ("pod_name", "pod_name", None, TEXT_OR_NONE),
    ("name", "name", None, TEXT_OR_NONE),
    ("labels", "labels", {}, TEXTS),
    ("recovering", "recovering", False, FLAG),
    ("generation", "generation", 0, (check_int, (), 0, 9223372036854775807)),
    ("created_at", "created_at", "", TEXT),
    ("created_boottime", "created_boottime", None, (check_nullable, NONE, (check_float, (), 0, 1000000000000.0))),
    ("completed_at", "completed_at", None, TEXT_OR_NONE),
    ("completed_boottime", "completed_boottime", None, (check_nullable, NONE, (check_float, (), 0, 1000000000000.0))),
    ("cgroup", "cgroup", None, TEXT_OR_NONE),
    ("lingering_since", "lingering_since", None, (check_nullable, NONE, (check_float, (), 0, 1000000000000.0))),
    ("lingering_until", "lingering_until", None, (check_nullable, NONE, (check_float, (), 0, 1000000000000.0))),
    ("stopped", "stopped", False, FLAG),
    ("late_cpu", "late_cpu", 0.0, (check_float, (), 0, 1000000000000.0)),
    ("taken", "taken", False, FLAG),
    ("history_file", "history_file", "", (check_named, (), names.check_file)),
    ("owed", "owed", None, (check_nullable, NONE, (check_model, (), Owed))),
    ("job_labels", "job_labels", {}, (check_dict, (), (check_named, (), names.check_label), TEXT)),
    ("runs", "runs", 1, (check_int, (), 0, 9223372036854775807)),
    ("left", "left", {}, (check_dict, (), (check_named, (), names.check_container_id), TEXT_OR_NONE)),
    ("left_more", "left_more", 0, (check_int, (), 0, 9223372036854775807)),
    ("returned", "returned", None, (check_nullable, NONE, (check_model, (), Returned))),
    ("groups", "groups", [], (check_list, (), (check_model, (), MonGroup))),
    ("members", "members", {}, (check_dict, (), (check_named, (), names.check_member), (check_model, (), Member))),
))
Index = Form("Index", (
    ("version", "version", 1, (check_int, (), 1, 1)),
    ("key", "key", ABSENT, (check_named, (), names.check_container_id)),
    ("history_file", "history_file", "", (check_named, (), names.check_file)),
    ("job_labels", "job_labels", {}, (check_dict, (), (check_named, (), names.check_label), TEXT)),
))
Failure = Form("Failure", (
    ("version", "version", 1, (check_int, (), 1, 1)),
    ("container", "container", ABSENT, TEXT),
    ("stage", "stage", ABSENT, TEXT),
    ("reason", "reason", ABSENT, TEXT),
    ("problem", "problem", ABSENT, TEXT),
    ("tried", "tried", "", TEXT),
    ("kernel", "kernel", "", TEXT),
    ("hint", "hint", "", TEXT),
    ("monitored", "monitored", False, FLAG),
    ("time", "time", "", TEXT),
    ("boottime", "boottime", None, (check_nullable, NONE, (check_float, (), 0, 1000000000000.0))),
    ("bundle", "bundle", None, TEXT_OR_NONE),
    ("pid", "pid", None, (check_nullable, NONE, (check_int, (), 1, 2147483647))),
    ("starttime", "starttime", None, (check_nullable, NONE, (check_int, (), 0, 9223372036854775807))),
    ("key", "key", None, (check_nullable, NONE, (check_named, (), names.check_container_id))),
    ("kind", "kind", None, (check_nullable, NONE, (check_literal, (), "pod", "container", "sandbox", "job"))),
    ("namespace", "namespace", None, TEXT_OR_NONE),
    ("pod", "pod", None, TEXT_OR_NONE),
    ("name", "name", None, TEXT_OR_NONE),
    ("history_file", "history_file", "", (check_named, (), names.check_file)),
    ("labels", "labels", {}, (check_dict, (), (check_named, (), names.check_label), TEXT)),
))
