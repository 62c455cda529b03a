# SPDX-License-Identifier: Apache-2.0
"""The Helm chart: that Kubernetes takes what it renders,
that it asks for no more than it needs, and that all agree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import jsonschema
import kubernetes_validate
import pytest

from fetch import helm
from hook import __version__
from hook.cli.command_line import parse_command
from hook.cli.verbs import parse_address
from hook.entry import parse as parse_options
from hook.models import Options
from hook.node import paths
from tests.support import chart
from tests.support.chart import Object, render

import cluster
import node
import runtime

pytestmark = pytest.mark.skipif(helm.missing() is not None, reason=str(helm.missing()))
OLDEST = "1.30"  # of Kubernetes
WORDS = ["--linger=5", "--key=auto", '--annotation=a=b "c" {{ d }}', "--strict"]
EVERYTHING: Object = {
    "image": {"repository": "example/hook", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "pull"}],
    "options": WORDS,
    "prefix": "/opt/hook",
    "hooksDir": "/etc/containers/oci/hooks.d",
    "affinity": {"nodeAffinity": {}},
    "podAnnotations": {"a": "b"},
    "watch": True,
    "view": {"enabled": True},
    "history": {"stdout": True},
    "priorityClassName": "",
}
RECONCILES = {"reconcile", "remove-program"}
KEPT = {"DAC_OVERRIDE"}
OF_WATCH = {"NET_ADMIN"}
LOG_DIR = paths.HISTORY.rpartition("/")[0]
DROPPED_AT_ONCE = {"SETPCAP", "SYS_ADMIN", "SYS_PTRACE"}


@pytest.fixture(scope="module", params=[{}, EVERYTHING], ids=["defaults", "everything"])
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return render(request.param)


@pytest.fixture(scope="module")
def defaults() -> list[Object]:
    return render()


def is_of_test(item: Object) -> bool:
    """Whether `helm test` makes an object."""
    return bool(item["metadata"].get("annotations", {}).get("helm.sh/hook") == "test")


def only(objects: list[Object], kind: str, *, of_test: bool = False) -> Object:
    (matching,) = [item for item in objects if item["kind"] == kind and is_of_test(item) is of_test]
    return matching


def plan(objects: list[Object], *, of_test: bool = False) -> Object:
    """What the uninstall Job goes by, or `helm test`."""
    loaded: Object = json.loads(only(objects, "ConfigMap", of_test=of_test)["data"]["plan.json"])
    return loaded


def with_made(objects: list[Object]) -> list[Object]:
    """Also the Jobs that the uninstall Job makes, and the pods that `helm test` makes."""
    made = [
        plan(objects)["remove-json"],
        plan(objects)["remove-program"],
        plan(objects, of_test=True)["pod"],
    ]
    return [*objects, *made]


def pods(objects: list[Object]) -> Iterator[Object]:
    for made in with_made(objects):
        if made["kind"] == "Pod":
            yield made["spec"]
        elif "template" in made.get("spec", {}):
            yield made["spec"]["template"]["spec"]


def containers(objects: list[Object]) -> dict[str, Object]:
    every_container = [
        container
        for pod in pods(objects)
        for container in [*pod.get("initContainers", []), *pod["containers"]]
    ]
    return {container["name"]: container for container in every_container}


def mounts(container: Object) -> dict[str, Object]:
    return {mount["mountPath"]: mount for mount in container.get("volumeMounts", [])}


def test_kubernetes_takes_it(objects: list[Object]) -> None:
    for version in (OLDEST, kubernetes_validate.latest_version()):
        for made in with_made(objects):
            kubernetes_validate.validate(made, version, strict=True)


def test_it_has_the_programs_version_and_asks_for_the_oldest_kubernetes_that_serves() -> None:
    described = chart.load(chart.CHART / "Chart.yaml")
    assert (described["appVersion"], described["kubeVersion"]) == (__version__, f">={OLDEST}.0-0")


def test_helm_lint_warns_of_nothing() -> None:
    chart.run("lint", "--strict", chart.CHART)


def test_each_value_that_a_template_reads_has_a_default() -> None:
    """To Helm one that does not exist is empty."""
    texts = [path.read_text(encoding="utf-8") for path in (chart.CHART / "templates").rglob("*.*")]
    paths = {path for text in texts for path in re.findall(r"\.Values((?:\.\w+)+)", text)}
    assert paths
    for path in paths:
        value = chart.load(chart.VALUES)
        for name in path.split(".")[1:]:
            assert name in value, path
            value = value[name]


def test_names_stay_within_what_kubernetes_takes() -> None:
    """A node's Job has ten digits and a dash behind its name; labels take 63 characters."""
    long = render(name="a" * 53)
    names = [plan(long)[name]["metadata"]["name"] for name in ("remove-json", "remove-program")]
    assert all(
        len(name) + 11 <= 63
        for name in [*names, plan(long, of_test=True)["pod"]["metadata"]["name"]]
    )


# --- Options


def test_options_are_set_once_and_reach_every_container(objects: list[Object]) -> None:
    expected = chart.load(chart.VALUES)["options"]
    if (
        only(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]["args"][1]
        == "--prefix=/opt/hook"
    ):
        expected = WORDS
    by_name = containers(objects)
    words = [item["args"][1:] for item in by_name.values() if "args" in item] + [
        plan(objects, of_test=True)["options"]
    ]
    for item in by_name.values():
        if "readinessProbe" in item:
            command = item["readinessProbe"]["exec"]["command"]
            words.append(
                command[
                    next(at for at, word in enumerate(command) if word.startswith("--prefix")) :
                ]
            )
    assert {tuple(item[3:]) for item in words} == {tuple(expected)}
    assert len({tuple(item[:3]) for item in words}) == 1
    assert parse_options(expected)[1] == []


def schema(values: Object) -> None:
    jsonschema.validate(
        values, json.loads((chart.CHART / "values.schema.json").read_text(encoding="utf-8"))
    )


METRICS: Object = {"metrics": {"port": 19753, "created": True}}
DROPPED = [{"sourceLabels": ["__name__"], "regex": "resctrl_mon_c[16]_.*", "action": "drop"}]
LABELS = {"release": "prometheus"}
WITH_OPERATOR: Object = {
    "metrics": {
        "podMonitor": {
            "enabled": True,
            "interval": "15s",
            "labels": LABELS,
            "metricRelabelings": DROPPED,
        },
        "prometheusRule": {"enabled": True, "labels": LABELS},
    }
}
GOOD = [
    "--key=sandbox",
    "--containers=all",
    "--monitor=opt-out",
    "--annotation=a=b=c",
    "--annotation=a=",
]
GOOD += [
    "--group-prefix=a.b",
    "--linger=0",
    "--linger=86400",
    "--snapshot-ttl=604800",
    "--lock-timeout=0.5",
]
GOOD += ["--rmid-wait=60", "--namespace=shop", "--strict", "--history="]
BAD = [
    "--key=pod",
    "--containers=none",
    "--monitor=yes",
    "--annotation=a",
    "--annotation==b",
    "--group-prefix=-a",
]
BAD += [
    "--group-prefix=" + "a" * 51,
    "--linger=ten",
    "--linger=1.5",
    "--linger=-1",
    "--linger=86401",
]
BAD += ["--snapshot-ttl=604801", "--lock-timeout=61", "--rmid-wait=60.5", "--rmid-wait=x"]
THE_CHARTS = ("resctrl_root", "run_dir", "history", "node")
"""The options that name directories, which the chart mounts, and the node."""


def test_the_schema_takes_values_and_options_that_can_be_meant_and_no_others() -> None:
    names = Options.model_fields.keys() - THE_CHARTS
    options = [
        f"--{name.replace('_', '-')}{'' if name == 'strict' else '=x'}" for name in sorted(names)
    ]
    fine: list[Object] = [
        EVERYTHING,
        METRICS,
        WITH_OPERATOR,
        {"options": options},
        {"sumLabels": ["user", "_"]},
    ]
    for values in (chart.load(chart.VALUES), *fine):
        schema(values)
    wrong: list[Object] = [{"options": [f"--{name.replace('_', '-')}=x"]} for name in THE_CHARTS]
    wrong += [
        {"options": ["--linger 60"]},
        {"options": ["--lingr=60"]},
        {"option": ["--linger=60"]},
    ]
    wrong += [
        {"prefix": "usr"},
        {"prefix": "/usr/."},
        {"hooksDir": "/a b"},
        {"hooksDir": "/etc/../x"},
    ]
    wrong += [
        {"testing": {"resctrlRoot": "/resctrl"}},
        {"test": {"everyNode": "yes"}},
        {"image": {"digest": "latest"}},
    ]
    wrong += [{"nodeSelector": {"gpu": value}} for value in (True, 1, {"a": "b"}, "a b")]
    wrong += [
        {"tolerations": [{"value": True}]},
        {"tolerations": [{"keys": "a"}]},
        {"affinity": {"nodes": {}}},
    ]
    wrong += [
        {"imagePullSecrets": [{"name": 7}]},
        {"imagePullSecrets": [{}]},
        {"resources": {"limit": {}}},
    ]
    wrong += [{"resources": {"limits": {"memory": value}}} for value in ("1 Gi", "much", True)]
    wrong += [
        {"updateStrategy": {"type": "Rolling"}},
        {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "x"}}},
    ]
    wrong += [
        {"sumLabels": names}
        for names in (["a", "b", "c"], ["1a"], ["__a"], ["a b"], ["a" * 65], [""])
    ]
    metrics: list[Object] = [{"port": 80}, {"port": "9753"}, {"events": ["c1_res"]}, {"on": True}]
    metrics += [{"podMonitor": {"interval": "often"}}]
    for values in (*wrong, *({"metrics": metric} for metric in metrics)):
        with pytest.raises(jsonschema.ValidationError):
            schema(values)


def test_a_release_whose_name_kubernetes_would_refuse_is_refused_with_its_name() -> None:
    for name in ("meter", "0meter", "m.e-t", "a" * 53, "a" * 34 + "-b", "no-hook"):
        assert render(name=name)
    for name in ("0", "17", "1e3", "0x1f", "true", "null", "a" * 34 + ".b", "a" * 33 + "--b"):
        with pytest.raises(RuntimeError, match=rf"release name {re.escape(name)}: "):
            render(name=name)
    with pytest.raises(RuntimeError, match="the namespace 0: to YAML it is no text"):
        render(namespace="0")


def test_an_option_that_the_hook_would_refuse_is_refused_at_once_with_what_to_write() -> None:
    assert render({"options": GOOD})
    for word in (*GOOD, *BAD):
        assert (parse_options([word])[1] == []) is (word in GOOD), "the hook agrees"
    for word in BAD:
        with pytest.raises(
            RuntimeError, match=f"options: {re.escape(word)}: write {word.partition('=')[0]}=X"
        ):
            render({"options": [word]})


OFF: Object = {"enabled": False}
ON: Object = {"enabled": True}
DIGEST = "sha256:" + "0" * 64
WRONG: dict[str, list[Object]] = {
    # What a boot or the node's cleaning empties, what may be noexec, what is the kernel's,
    # what the hook itself keeps
    "prefix": [
        *(
            {"prefix": path}
            for path in (
                "/tmp",
                "/tmp/x",
                "/run",
                "/run/resctrl-mon-hook",
                "/var/run/x",
                "/var/tmp",
            )
        ),
        *(
            {"prefix": path}
            for path in ("/dev/shm", "/proc", "/sys", "/sys/fs/resctrl", "/etc", "/etc/opt/hook")
        ),
        # A directory of another program
        *({"prefix": path} for path in ("/usr/lib/tmpfiles.d", "/opt/hooks.d/here")),
        *({"prefix": path} for path in ("usr", "/", "/usr/", "/usr/../opt", "/a b", "")),
    ],
    "hooksDir": [
        *(
            {"hooksDir": path}
            for path in (
                "/dev/shm",
                "/dev/shm/hooks.d",
                "/run/containers/oci/hooks.d",
                "/tmp/hooks.d",
            )
        ),
        *(
            {"hooksDir": path}
            for path in ("/run/resctrl-mon-hook/hooks", "/var/run/hooks.d", "/proc/hooks.d")
        ),
        # Two mounts of one path, or one below the other
        *(
            {"hooksDir": f"/usr/libexec/oci/hooks.d{below}"}
            for below in ("", "/hooks.d", "/my/hooks")
        ),
        {"prefix": "/opt/x", "hooksDir": "/opt/x/libexec/oci/hooks.d"},
        *(
            {"hooksDir": path}
            for path in (
                "/etc/tmpfiles.d",
                "/etc/tmpfiles.d/hooks.d",
                "/etc/cni/net.d",
                "/etc/cron.d",
            )
        ),
        *(
            {"hooksDir": path}
            for path in ("/etc/kubernetes/manifests", "/etc", "/usr/bin", "/etc/containers/oci")
        ),
    ],
    "testing.resctrlRoot": [
        {"testing": {"resctrlRoot": path}}
        for path in (
            "/sys/fs/resctrl",
            "/run/resctrl-mon-hook/model",
            "/var/log/resctrl-mon-hook/model",
            "/node/model",
            "/host/usr/x",
            "/dev/shm/x",
            "/run/x",
        )
    ],
    # What asks for what is switched off
    "metrics.podMonitor.enabled": [{"metrics": {**OFF, "podMonitor": ON}}],
    "metrics.prometheusRule.enabled": [{"metrics": {**OFF, "prometheusRule": ON}}],
    "metrics.created": [{"metrics": {**OFF, "created": True}}],
    "test.everyNode": [{"metrics": OFF, "test": {"everyNode": True}}],
    "history.stdout": [{"history": {"stdout": True}, "options": ["--linger=600", "--history="]}],
    "resources.limits.memory": [{"resources": {"limits": None}}],
    "options": [
        {"options": ["--history=/x"]},
        {"options": ["--linger=1d"]},
        {"options": "--strict"},
    ],
    "image.digest": [{"image": {"digest": "latest"}}],
    "metrics.port": [{"metrics": {"port": 80}}],
}
"""Values that cannot work, by the name that the refusal has to have."""
RIGHT: list[Object] = [
    *(
        {"prefix": path}
        for path in ("/usr/local", "/opt/tmp", "/var/lib/hook", "/srv/run", "/home/x")
    ),
    *(
        {"hooksDir": path}
        for path in (
            "/etc/containers/oci/hooks.d",
            "/opt/oci-hooks",
            "/var/lib/my-hooks.d",
            "/etc/hooks",
        )
    ),
    {"prefix": "/usr/local", "hooksDir": "/usr/libexec/oci/hooks.d"},
    *(
        {"testing": {"resctrlRoot": path}}
        for path in ("/opt/model/resctrl", "/dev/shm/model/resctrl", "/mnt/x")
    ),
    {"metrics": OFF},
    {
        "metrics": {"podMonitor": ON, "prometheusRule": ON, "created": True},
        "test": {"everyNode": True},
    },
    {"image": {"digest": DIGEST}},
]


def refusal(values: Object) -> str:
    """How Helm refuses values: by the schema, with the path of the value, or by the templates;
    empty if it does not.
    """
    try:
        render(values)
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("name", "values"), [(name, values) for name, sets in WRONG.items() for values in sets], ids=str
)
def test_values_that_cannot_work_are_refused_by_name(name: str, values: Object) -> None:
    path = name.replace(".", "/")
    assert re.search(rf"[ :]{re.escape(name)}(:| is) |at '/{path}(/[0-9]+)?': ", refusal(values)), (
        refusal(values)
    )


@pytest.mark.parametrize("values", RIGHT, ids=str)
def test_values_that_can_work_are_taken(values: Object) -> None:
    assert refusal(values) == ""


@pytest.mark.parametrize(
    ("name", "was"), [("hooksDir", "/etc/containers/oci/hooks.d"), ("prefix", "/usr/local")]
)
def test_an_upgrade_that_moves_a_directory_is_refused_with_the_value_to_set(
    name: str, was: str
) -> None:
    there = only(render({name: was}), "DaemonSet")
    assert render({name: was}, cluster=there)
    with pytest.raises(
        RuntimeError, match=f"{name}: the nodes have the hook by {name}={was}: set that, or helm"
    ):
        render(cluster=there)


# --- Privileges


def test_each_container_has_no_more_privileges_than_it_needs(objects: list[Object]) -> None:
    """No end of a pod does anything, and a refusal can be read in its description."""
    by_name = containers(objects)
    capabilities = dict.fromkeys(RECONCILES, KEPT | DROPPED_AT_ONCE) | {
        "watch": KEPT | DROPPED_AT_ONCE | OF_WATCH
    }
    for name, container in by_name.items():
        security = container["securityContext"]
        assert "privileged" not in security, name
        assert security["readOnlyRootFilesystem"] is True, name
        assert security["capabilities"]["drop"] == ["ALL"], name
        assert set(security["capabilities"].get("add", [])) == capabilities.get(name, set()), name
        assert security.get("allowPrivilegeEscalation") is (
            None if name in capabilities else False
        ), name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert container["resources"]["limits"] == {
            "memory": "192Mi" if name == "load" else "1Gi"
        }, name
        assert name == "load" or container["terminationMessagePolicy"] == "FallbackToLogsOnError", (
            name
        )
        assert "lifecycle" not in container, name
    assert set(by_name) >= RECONCILES


def test_only_uninstall_and_test_speak_to_the_api_server_and_have_no_rights_on_the_node(
    objects: list[Object],
) -> None:
    tokens = {
        pod["containers"][0]["name"]: pod["automountServiceAccountToken"] for pod in pods(objects)
    }
    assert {name for name, token in tokens.items() if token} == {"uninstall", "test"}
    for name in ("uninstall", "test", "load"):
        container = containers(objects)[name]
        assert container["securityContext"]["runAsNonRoot"] is True
        assert set(mounts(container)) <= {"/plan"}
    assert not {item["kind"] for item in objects} & {"ClusterRole", "ClusterRoleBinding"}


ALLOWED = {
    "test": {
        "pods": {"get", "list", "create", "patch", "delete"},
        "pods/exec": {"get", "create"},
        "events": {"list"},
    },
    "pre-delete": {
        **{"pods": {"list"}, "daemonsets": {"get", "delete"}},
        "jobs": {"create", "list", "patch", "deletecollection"},
    },
}


@pytest.mark.parametrize("hook", ALLOWED)
def test_the_token_of_a_helm_hook_allows_no_more_than_the_hook_does_and_goes_with_it(
    objects: list[Object], hook: str
) -> None:
    rules = {
        rule["resources"][0]: rule
        for rule in only(objects, "Role", of_test=hook == "test")["rules"]
    }
    assert {name: set(rule["verbs"]) for name, rule in rules.items()} == ALLOWED[hook]
    if "daemonsets" in rules:
        assert rules["daemonsets"]["resourceNames"] == [
            only(objects, "DaemonSet")["metadata"]["name"]
        ]
    made = [
        item
        for item in objects
        if item["kind"] != "DaemonSet" and is_of_test(item) == (hook == "test")
    ]
    annotations = {item["kind"]: item["metadata"]["annotations"] for item in made}
    first = {
        kind for kind, texts in annotations.items() if texts.get("helm.sh/hook-weight") == "-1"
    }
    assert first == {"ServiceAccount", "Role", "RoleBinding", "ConfigMap"}
    for kind, texts in annotations.items():
        assert texts["helm.sh/hook"] == hook
        assert "hook-succeeded" in texts["helm.sh/hook-delete-policy"] or (
            kind == "Pod" and hook == "test"
        )


def test_no_host_namespace_but_that_of_pids_for_reconcile_and_of_the_network_for_watch(
    objects: list[Object],
) -> None:
    for pod in pods(objects):
        names = {container["name"] for container in pod["containers"]}
        assert pod.get("hostPID", False) is bool(names & RECONCILES)
        assert pod.get("hostNetwork", False) is ("watch" in names)
        assert "hostIPC" not in pod


# --- Mounts


def writable(objects: list[Object], name: str) -> set[str]:
    return {
        path
        for path, mount in mounts(containers(objects)[name]).items()
        if not mount.get("readOnly")
    }


def test_what_can_be_written_to(defaults: list[Object]) -> None:
    """The places are those that the hook-injector sees as upstream deploys it."""
    programs, hooks = "/host/usr/libexec/oci/hooks.d", "/host/usr/share/containers/oci/hooks.d"
    boot = "/host/etc/tmpfiles.d"
    kept = {Options().run_dir, LOG_DIR}
    assert {name: writable(defaults, name) for name in containers(defaults)} == {
        "check": {"/node"},
        "install": {programs, hooks, boot, "/node"},
        "remove-json": {hooks},
        "reconcile": kept,
        "remove-program": {*kept, programs, boot},
        "uninstall": set(),
        "test": set(),
        "load": set(),
        "metrics": {LOG_DIR},
    }


def test_nothing_of_the_host_is_made_but_directories_that_we_write_to(
    objects: list[Object],
) -> None:
    paths = [
        volume for pod in pods(objects) for volume in pod.get("volumes", []) if "hostPath" in volume
    ]
    made = {path["name"] for path in paths if path["hostPath"].get("type") == "DirectoryOrCreate"}
    assert made == {"programs", "hooks", "run", "history", "tmpfiles"}
    assert not [path for path in paths if path["hostPath"]["path"] in ("/", "/etc", "/run", "/var")]


def test_reconcile_alone_gets_the_labels_to_add_up_by(
    defaults: list[Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = (
        containers(objects)
        for objects in (defaults, render({"sumLabels": ["user", "cost_center"]}))
    )
    assert {name for name in after if after[name] != before[name]} == {"reconcile"}
    (labels,) = (
        variable for variable in after["reconcile"]["env"] if variable["name"] == "SUM_LABELS"
    )
    monkeypatch.setenv(labels["name"], labels["value"])
    given, _ = parse_command("reconcile", node.list_sums())
    assert given.sum_label == ["user", "cost_center"]


def test_adopt_mounts_what_the_runtimes_keep_read_only_and_only_for_reconcile(
    defaults: list[Object],
) -> None:
    """No bundle, in which a container's file system is mounted,
    and no directory with a runtime's socket.
    """
    adopting = render({"adopt": True})
    for made in with_made(adopting):
        kubernetes_validate.validate(made, OLDEST, strict=True)
    before, after = (containers(objects) for objects in (defaults, adopting))
    assert {name for name in after if after[name] != before[name]} == {"reconcile"}
    new = {
        path: mount
        for path, mount in mounts(after["reconcile"]).items()
        if path not in mounts(before["reconcile"])
    }
    assert {path for path, mount in new.items() if not mount.get("readOnly")} == {runtime.BUNDLES}
    shown = [path for path in new if path != runtime.BUNDLES]
    assert all(any(f"{root}/".startswith(f"{path}/") for path in shown) for root in runtime.ROOTS)
    volumes = only(adopting, "DaemonSet")["spec"]["template"]["spec"]["volumes"]
    paths = {
        volume["hostPath"]["path"]
        for volume in volumes
        if volume["name"] in {mount["name"] for mount in new.values()} - {"adopt"}
    }
    assert {f"/host{path}" for path in paths} == set(shown)
    assert after["reconcile"]["securityContext"] == before["reconcile"]["securityContext"], (
        "no capability more"
    )


# --- Life


def test_a_priority_of_the_systems_without_a_limit_of_memory_is_refused() -> None:
    for name in ("system-node-critical", "system-cluster-critical"):
        for resources in (None, {"limits": None}, {"limits": {"memory": 0}}):
            values: Object = {"priorityClassName": name, "resources": resources}
            with pytest.raises(
                RuntimeError, match=rf"resources\.limits\.memory is not set: .*{name}"
            ):
                render(values)
            assert render({**values, "priorityClassName": "mine"})


def test_the_nodes_jobs_have_labels_of_their_own_wait_and_clean_up_after_themselves(
    objects: list[Object],
) -> None:
    jobs = [plan(objects)[name] for name in ("remove-json", "remove-program")]
    labels = [job["metadata"]["labels"] for job in jobs]
    labels.append(only(objects, "DaemonSet")["spec"]["selector"]["matchLabels"])
    assert len({label["app.kubernetes.io/component"] for label in labels}) == 3
    assert plan(objects)["selector"] == ",".join(
        f"{name}={value}" for name, value in labels[2].items()
    )
    assert all(job["spec"]["suspend"] is True for job in jobs)
    assert jobs[1]["spec"]["ttlSecondsAfterFinished"] > 0
    for job in jobs:
        (container,) = job["spec"]["template"]["spec"]["containers"]
        path = f"metadata.annotations['{cluster.SINCE}']"
        (removed_at,) = (
            variable for variable in container["env"] if variable["name"] == "REMOVED_AT"
        )
        assert removed_at["valueFrom"] == {"fieldRef": {"fieldPath": path}}


# --- Metrics


def metrics_arguments(values: Object | None = None) -> list[str]:
    env = {variable["name"]: variable for variable in containers(render(values))["metrics"]["env"]}
    assert env["POD_IP"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    words: list[str] = env["METRICS"]["value"].replace("$(POD_IP)", "10.1.2.3").split()
    return words


def test_metrics_are_served_at_the_address_of_the_pod_alone() -> None:
    """With watch it has the host's network: there it must not listen on everything."""
    for values, expected in (
        (None, (("10.1.2.3", 9753), False)),
        (METRICS, (("10.1.2.3", 19753), True)),
    ):
        given, _ = parse_command("metrics", metrics_arguments(values))
        assert (parse_address(given.listen), given.created) == expected


def test_watch_and_metrics_see_what_reconcile_does_and_can_be_off(defaults: list[Object]) -> None:
    assert "watch" not in containers(defaults)
    with_watch = containers(render({"watch": True}))
    assert mounts(with_watch["watch"]) == mounts(with_watch["reconcile"])
    assert not {made["kind"] for made in defaults} & {"PodMonitor", "PrometheusRule"}
    by_name = containers(defaults)
    assert set(mounts(by_name["metrics"])) == set(mounts(by_name["reconcile"])) - {"/sys/fs/cgroup"}
    assert "metrics" not in containers(render({"metrics": OFF}))


def test_view_writes_into_the_run_directory_alone_and_is_off_unless_it_is_enabled(
    defaults: list[Object],
) -> None:
    assert "view" not in containers(defaults)
    viewing = render({"view": {"enabled": True}})
    assert writable(viewing, "view") == {Options().run_dir}
    assert set(mounts(containers(viewing)["view"])) == set(
        mounts(containers(viewing)["metrics"])
    ) - {LOG_DIR}


# --- The history


def test_what_writes_a_line_has_the_nodes_name_and_the_historys_directory(
    objects: list[Object],
) -> None:
    """The hook's JSON has the name from `install`; its directory is the host's."""
    name = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    by_name = containers(objects)
    writes = RECONCILES | ({"watch"} & by_name.keys())
    assert {
        each for each, container in by_name.items() if name in container.get("env", [])
    } == writes | {"install"}
    assert {each for each in by_name if LOG_DIR in writable(objects, each)} == writes | {"metrics"}
    directories = [
        volume
        for pod in pods(objects)
        for volume in pod.get("volumes", [])
        if volume["name"] == "history"
    ]
    assert {volume["hostPath"]["path"] for volume in directories} == {LOG_DIR}


def test_history_on_stdout_sees_the_historys_directory_alone_and_is_off_unless_it_is_asked_for(
    defaults: list[Object],
) -> None:
    assert "history" not in containers(defaults)
    printing = containers(render({"history": {"stdout": True}}))["history"]
    assert mounts(printing) == {
        LOG_DIR: {"name": "history", "mountPath": LOG_DIR, "readOnly": True}
    }


def test_the_chart_has_no_link() -> None:
    """Helm 4 prints a line about each one at each command, and packs none."""
    assert [path for path in chart.CHART.rglob("*") if path.is_symlink()] == []


def test_a_pod_monitor_finds_the_pods_and_the_rules_are_those_that_promtool_tests() -> None:
    objects = render(WITH_OPERATOR)
    rules = only(objects, "PrometheusRule")
    assert rules["spec"] == chart.load(chart.ROOT / "packaging/prometheus/rules.yaml"), (
        "run build.py compile"
    )
    assert rules["metadata"]["labels"]["release"] == "prometheus"
    monitor, daemonset = only(objects, "PodMonitor"), only(objects, "DaemonSet")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["metadata"]["namespace"] == daemonset["metadata"]["namespace"]
    assert monitor["spec"]["selector"] == daemonset["spec"]["selector"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (port,) = containers(objects)["metrics"]["ports"]
    assert (endpoint["port"], endpoint["path"], endpoint["interval"]) == (
        port["name"],
        "/metrics",
        "15s",
    )
    assert endpoint["honorLabels"] is True, "the series keep their labels"
    assert endpoint["metricRelabelings"] == DROPPED
    node, pod = endpoint["relabelings"]
    assert (node["targetLabel"], node["sourceLabels"]) == (
        "instance",
        ["__meta_kubernetes_pod_node_name"],
    )
    assert (pod["action"], pod["regex"]) == ("labeldrop", "pod"), (
        "a counter of a namespace would begin again"
    )
