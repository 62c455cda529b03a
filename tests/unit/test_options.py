# SPDX-License-Identifier: Apache-2.0
"""The hook's command line: what is right counts, what is wrong is named in one line and ignored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hook.base.models import Options
from hook.stages import entry

DEFAULTS = Options().model_dump()

GOOD: dict[str, tuple[str, Any]] = {
    "resctrl_root": ("/mnt/resctrl/", "/mnt/resctrl"),
    "run_dir": ("/run/elsewhere", "/run/elsewhere"),
    "group_prefix": ("mine-", "mine-"),
    "key": ("sandbox", "sandbox"),
    "containers": ("podman", "podman"),
    "namespace": ("kube-system", ["kube-system"]),
    "annotation": ("a.b/c=d=e", {"a.b/c": "d=e"}),
    "monitor": ("opt-out", "opt-out"),
    "linger": ("60", 60),
    "snapshot_ttl": ("0", 0),
    "lock_timeout": ("0.25", 0.25),
    "rmid_wait": ("3", 3.0),
}
"""A good value of each option that takes one, and what it becomes."""


def changed(*words: str) -> tuple[dict[str, Any], list[str]]:
    """The fields that are not as by default, and the complaints."""
    found, complaints = entry.parse(list(words))
    return {name: value for name, value in found.model_dump().items() if value != DEFAULTS[name]}, complaints


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


def test_no_words_are_the_defaults() -> None:
    assert entry.parse([]) == (Options(), [])


def test_every_option_is_tried_here() -> None:
    assert {*GOOD, "strict"} == set(DEFAULTS)


@pytest.mark.parametrize("name", GOOD)
def test_both_forms_of_an_option(name: str) -> None:
    text, value = GOOD[name]
    assert changed(f"{option(name)}={text}") == ({name: value}, [])
    assert changed(option(name), text) == ({name: value}, [])


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("--strict --linger=5", {"strict": True, "linger": 5}),  # a flag takes no word from the others
        ("--namespace=a --namespace b --namespace=a", {"namespace": ["a", "b", "a"]}),  # repeats add up
        ("--annotation=a=1 --annotation b=", {"annotation": {"a": "1", "b": ""}}),
        ("--annotation=a=1 --annotation=a=2", {"annotation": {"a": "2"}}),
        ("--linger=5 --linger=6", {"linger": 6}),  # of others the last counts
        ("--namespace=b", {"namespace": ["b"]}),  # nothing of the above is in the defaults
        ("--namespace=", {"namespace": [""]}),
        ("--linger=86400 --snapshot-ttl=604800", {"linger": 86400, "snapshot_ttl": 604800}),  # the bounds are within
        ("--lock-timeout=0 --rmid-wait=60", {"lock_timeout": 0.0, "rmid_wait": 60.0}),
    ],
)
def test_words_become_fields_of_the_kind_that_their_defaults_have(words: str, fields: dict[str, Any]) -> None:
    found, complaints = changed(*words.split())
    assert (repr(found), complaints) == (repr({name: fields[name] for name in DEFAULTS if name in fields}), [])


def test_all_of_them_together() -> None:
    words = [f"{option(name)}={text}" for name, (text, _) in GOOD.items()]
    assert changed(*words, "--strict") == ({name: value for name, (_, value) in GOOD.items()} | {"strict": True}, [])


BAD = {
    "--linger=soon": "--linger",
    "--linger=": "--linger",
    "--linger=1.5": "--linger",
    "--linger=-1": "--linger",
    "--linger=86401": "--linger",
    "--linger=" + "9" * 5000: "--linger",
    "--snapshot-ttl=604801": "--snapshot-ttl",
    "--lock-timeout=60.1": "--lock-timeout",
    "--lock-timeout=-0.1": "--lock-timeout",
    "--lock-timeout=nan": "--lock-timeout",
    "--rmid-wait=inf": "--rmid-wait",
    "--key=pod": "--key",
    "--key=Auto": "--key",
    "--monitor=some": "--monitor",
    "--strict=true": "--strict",
    "--annotation=K": "--annotation",
    "--annotation==V": "--annotation",
    "--group-prefix=a/b": "--group-prefix",
    "--group-prefix=": "--group-prefix: '': Value error, not a group prefix",
    "--run-dir=run": "--run-dir",
    "--resctrl-root=/": "--resctrl-root",
    "--resctrl-root=/a/../b": "--resctrl-root",
    "--no-such=1": "--no-such",
    "--snapshot_ttl=3": "--snapshot_ttl",
    "--LINGER=3": "--LINGER",
    "--": "--",
    "-h": "-h",
    "word": "word",
    "": "''",
    "--\nnewline": "newline",
    "--model_config=1": "--model_config",
}


@pytest.mark.parametrize(("word", "named"), BAD.items())
def test_a_bad_option_is_named_and_ignored(word: str, named: str) -> None:
    found, complaints = changed("--namespace=a", word, "--strict")
    assert found == {"namespace": ["a"], "strict": True}
    assert len(complaints) == 1
    assert named in complaints[0]
    assert "\n" not in complaints[0]
    assert len(complaints[0]) < 200


@pytest.mark.parametrize("word", ["{}", "--key={}", "--linger={}", "--rmid-wait={}", "--annotation={}"])
def test_an_absurdly_long_word_is_quoted_in_part(word: str) -> None:
    _, (complaint,) = changed(word.format("Q" * 1000))
    assert complaint.count("Q") == 80


@pytest.mark.parametrize("name", GOOD)
def test_an_option_at_the_end_without_its_value(name: str) -> None:
    assert changed("--strict", option(name)) == ({"strict": True}, [f"{option(name)} wants a value"])


def test_each_bad_option_has_its_own_complaint() -> None:
    _, complaints = entry.parse(["--key=x", "--linger=-1", "--monitor=y", "--linger=z", "q", "--rmid-wait=nan"])
    said = sorted(line.partition(":")[0] for line in complaints)
    assert said == ["--key", "--linger", "--linger", "--monitor", "--rmid-wait", "unknown option 'q'"]


words = st.one_of(
    st.text(),
    st.text(st.characters(codec=None), max_size=30),
    st.sampled_from([option(name) for name in DEFAULTS]),
    st.builds("{}={}".format, st.sampled_from([option(name) for name in DEFAULTS]), st.text()),
    st.builds("{}={}".format, st.sampled_from([option(name) for name in DEFAULTS]), st.floats() | st.integers()),
    st.builds("--{}".format, st.text()),
    st.sampled_from(["--annotation=\ud800=\udcff", "--namespace=\udcff", "--key=\ud800", "--linger=\u0663", "\u2028"]),
)


@settings(deadline=None)
@given(st.lists(words, max_size=8))
@example(["--key=\ud800", "--annotation=\ud800", "--run-dir=/\udcff/.."])
def test_whatever_the_words_are_there_are_options_and_complaints_of_one_line(arguments: list[str]) -> None:
    before = list(arguments)
    found, complaints = entry.parse(arguments)
    assert arguments == before
    assert Options.model_validate(found.model_dump()) == found
    for line in complaints:
        assert len(line.splitlines()) == 1
        assert len(line) < 500
