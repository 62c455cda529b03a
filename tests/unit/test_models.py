# SPDX-License-Identifier: Apache-2.0
"""The compiled models against the pydantic ones: the same documents accepted, the same values,
the same first error.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import jsonschema
import pydantic
import pytest
from hypothesis import HealthCheck, given
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    computed_field,
    create_model,
)

import pyz
from hook import invalid, models, models_compiled, names, validation
from hook.node import models as node_models
from hook.node import models_compiled as node_models_compiled
from pyz import BuildError
from pyz.compile_models import compile_models, make_schema
from tests.unit import lines, strategies
from tests.unit.files import examples

ROOT = Path(__file__).resolve().parents[2]
COMPILED = ROOT / pyz.COMPILED["hook/models.py"]
BOTH = {models: models_compiled, node_models: node_models_compiled}
"""The forms of the models."""
FIELDS: list[type[models.Model]] = [
    item
    for source in BOTH
    for item in vars(source).values()
    if isinstance(item, type)
    and issubclass(item, models.Model)
    and item.__module__ == source.__name__
    and item.model_fields
]


def as_module(*classes: type[BaseModel]) -> ModuleType:
    """A module such as hook/models.py with these models in it."""
    module = ModuleType("made_up")
    everything = {"names": names, "Model": models.Model, **{cls.__name__: cls for cls in classes}}
    for cls in classes:
        cls.__module__ = "made_up"
    module.__dict__.update(everything, __all__=[cls.__name__ for cls in classes])
    return module


each_model = pytest.mark.parametrize("model", FIELDS, ids=lambda model: model.__name__)


def forms(model: type[BaseModel]) -> tuple[ModuleType, ModuleType]:
    """Return the modules that hold both forms of a model."""
    return next(pair for pair in BOTH.items() if pair[0].__name__ == model.__module__)


def outcome(form: Any, name: str, document: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """What a form makes of a document.

    The dump is compared as text: 1, 1.0 and True differ, and NaN equals NaN.
    """
    try:
        got = getattr(form, name).model_validate(document)
    except (pydantic.ValidationError, invalid.ValidationError) as error:
        first = error.errors()[0]
        return "refused", first["loc"]
    return "accepted", repr(got.model_dump())


def find_difference(one: Any, other: Any, name: str, document: Any) -> str:  # noqa: ANN401
    """Return how the results of both forms differ; empty if they agree."""
    ours, theirs = outcome(other, name, document), outcome(one, name, document)
    return (
        "" if ours == theirs else f"{name}: compiled {ours!a}, pydantic {theirs!a}, of {document!a}"
    )


# --- The models of the hook


@each_model
def test_each_strange_value_in_each_place_is_judged_alike(model: type[BaseModel]) -> None:
    for document in strategies.substitutions(model):
        assert not find_difference(*forms(model), model.__name__, document)


@each_model
def test_valid_documents_are_accepted_alike_and_a_dump_reads_back_as_the_same_value(
    model: type[BaseModel],
) -> None:
    @examples(40, HealthCheck.data_too_large)
    @given(strategies.valid(model))
    def run(document: Any) -> None:  # noqa: ANN401
        compiled = getattr(forms(model)[1], model.__name__)
        assert outcome(forms(model)[0], model.__name__, document)[0] == "accepted", (
            "strategies.ACCEPTED lacks an entry?"
        )
        assert not find_difference(*forms(model), model.__name__, document)
        source, ours = model.model_validate(document), compiled.model_validate(document)
        by_alias = source.model_dump(by_alias=True)
        assert model.model_validate(by_alias) == source
        assert compiled.model_validate(by_alias) == ours == compiled(**document)
        if by_alias == source.model_dump():  # no aliases, as in all that is written
            assert compiled.model_validate(ours.model_dump()) == ours

    run()


def test_substitutions_go_beyond_each_bound() -> None:
    documents = [
        document
        for document in strategies.substitutions(models.State)
        if isinstance(document, dict)
    ]
    assert {0, -1, 2**31 - 1, 2**31} <= {
        document["pid"] for document in documents if type(document.get("pid")) is int
    }


# --- What else both forms do


@pytest.mark.parametrize("written", [{"labels": {"a": "b"}}, {"labels": {"a": 5}}, {"labels": 5}])
@pytest.mark.parametrize("present", [{}, {"c": "d"}])
@pytest.mark.parametrize("model", ["KeyState", "Failure"])
def test_labels_of_an_earlier_version_are_read_unless_the_present_ones_are_there(
    model: str, written: dict[str, object], present: dict[str, str]
) -> None:
    name = {"KeyState": "metric_labels", "Failure": "job_labels"}[model]
    needed = {"KeyState": ("key", "kind"), "Failure": ("container", "stage", "reason", "problem")}
    document = {**dict.fromkeys(needed[model], "job"), **written}
    if present:
        document[name] = present
    assert not find_difference(models, models_compiled, model, document)
    if present or document["labels"] == {"a": "b"}:
        record = getattr(models_compiled, model).model_validate(document)
        assert getattr(record, name) == (present or written["labels"])


@pytest.fixture(params=[models, models_compiled], ids=["pydantic", "compiled"])
def form(request: pytest.FixtureRequest) -> Any:  # noqa: ANN401
    return request.param


def test_instances_are_taken_as_they_are(form: Any) -> None:  # noqa: ANN401
    linux = form.Linux(intelRdt={"closID": "x"})
    assert form.Linux.model_validate(linux) is linux
    assert form.Config(linux=linux).linux is linux


def test_the_input_is_neither_kept_nor_changed(form: Any) -> None:  # noqa: ANN401
    given_annotations = {"a": "b"}
    options = form.Options(annotation=given_annotations, namespace=(namespaces := ["x"]))
    given_annotations["a"] = "c"
    namespaces.append("y")
    assert (options.annotation, options.namespace) == ({"a": "b"}, ["x"])
    options.model_dump()["namespace"].append("z")
    assert options.namespace == ["x"]


def test_fields_of_a_later_version_are_ignored(form: Any) -> None:  # noqa: ANN401
    known = {"key": "web", "kind": "container"}
    assert form.KeyState.model_validate(
        {**known, "colour": "blue"}
    ) == form.KeyState.model_validate(known)


def test_mutable_defaults_are_fresh(form: Any) -> None:  # noqa: ANN401
    one, other = ((form.Options(), form.KeyState(key="a", kind="pod")) for _ in range(2))
    for mine, theirs in zip(one, other):
        mutable = [
            name for name in mine.model_dump() if isinstance(getattr(mine, name), (list, dict))
        ]
        assert len(mutable) >= 2
        assert not [name for name in mutable if getattr(mine, name) is getattr(theirs, name)]


def test_models_are_frozen_and_equal_by_type_and_fields(form: Any) -> None:  # noqa: ANN401
    fields = {"pid": 7, "starttime": 100, "group": "/r/mon_groups/a"}
    member = form.Member(**fields)
    with pytest.raises(ValueError, match="frozen"):
        member.pid = 8
    with pytest.raises(ValueError, match="frozen"):
        del member.pid
    assert {member: 1}[form.Member(**fields, name=None)] == 1
    assert member == form.Member(**fields, name=None)
    assert member != form.Member(**{**fields, "pid": 8})
    assert form.IntelRdt() != form.Linux()
    assert member != member.model_dump()


def test_an_error_tells_an_operator_what_and_where(form: Any) -> None:  # noqa: ANN401
    member = {"pid": 0, "starttime": 1, "group": "/x/mon_groups/oci-1"}
    with pytest.raises(ValueError, match="greater than or equal to 1") as caught:
        form.KeyState(key="a", kind="pod", members={"b": member})
    assert caught.value.errors()[0]["loc"] == ("members", "b", "pid")  # type: ignore[attr-defined]
    assert "members.b.pid" in str(caught.value)
    assert "KeyState" in str(caught.value)

    with pytest.raises(ValueError, match="Field required") as missing:
        form.State.model_validate({})
    assert missing.value.errors()[0]["loc"] == ("ociVersion",)  # type: ignore[attr-defined]


# --- The compiled text


@pytest.mark.parametrize("source", BOTH, ids=lambda module: module.__name__)
def test_the_committed_text_is_not_stale(source: ModuleType) -> None:
    compiled = Path(BOTH[source].__file__ or "")
    assert compiled == ROOT / pyz.COMPILED[str(Path(source.__file__ or "").relative_to(ROOT))]
    assert compiled.read_text(encoding="utf-8") == compile_models(source), (
        "run: python3 build.py compile"
    )


def test_the_schema_of_a_line_is_that_of_its_model() -> None:
    text = (ROOT / pyz.SCHEMA).read_text(encoding="ascii")
    assert text == make_schema(node_models.Job), "run: python3 build.py compile"
    jsonschema.Draft202012Validator.check_schema(json.loads(text))


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({}, None),
        (
            {"begin": None, "seconds": None, "labels": {}, "unknown": ["core_energy"], "later": 1},
            None,
        ),
        ({"end": None}, ["end"]),
        ({"use": {"core_energy": -1}}, ["use", "core_energy"]),
        ({"labels": {"user": 1}}, ["labels", "user"]),
        ({"containers": [{"name": "db"}]}, ["containers", 0]),
        ({"version": 2}, ["version"]),
    ],
)
def test_the_schema_of_a_line_accepts_what_the_model_does(
    fields: dict[str, Any], place: list[object] | None
) -> None:
    line = lines.make(1, "db", **fields)
    schema = json.loads((ROOT / pyz.SCHEMA).read_text(encoding="ascii"))
    paths = [
        list(error.absolute_path)
        for error in jsonschema.Draft202012Validator(schema).iter_errors(line)
    ]
    assert paths == ([place] if place is not None else [])
    assert (outcome(node_models, "Job", line)[0] == "accepted") == (place is None)


def test_callers_use_nothing_of_pydantics_models_that_the_compiled_ones_lack() -> None:
    """Their types are pydantic's to mypy."""
    callers = [
        path
        for path in COMPILED.parent.rglob("*.py")
        if str(path.relative_to(ROOT)) not in pyz.COMPILED
    ]
    used = {
        name
        for path in callers
        for name in re.findall(r"\.(model_\w+)", path.read_text(encoding="utf-8"))
    }
    assert not [
        name
        for name in used
        if not (hasattr(validation.Form, name) or hasattr(validation.Model, name))
    ]
    assert used


# --- What the compiler refuses


def elsewhere(text: str) -> str:
    return text


def method(model: Any) -> int:  # noqa: ANN401
    return int(model.a)


class Child(models.IntelRdt):
    b: int


class Endless(models.Model):
    inner: Endless | None = None


FIELDS_REFUSED: list[tuple[Any, Any, str]] = [
    (Any, ..., "node type 'any'"),
    (Annotated[str, Field(pattern="a")], ..., "key 'pattern' of node type 'str'"),
    (Annotated[int, Field(strict=False)], ..., "key 'strict' of node type 'int'"),
    (Literal["a", 1], ..., "a literal that is no text"),
    (list[str], Field(default_factory=list), "key 'default_factory' of node type 'default'"),
    (Annotated[int, Field(ge=1)], 0, "default 0, which is not"),
    (models.IntelRdt, models.IntelRdt(), "default IntelRdt"),
    (int, Field(validation_alias=AliasChoices("a", "b", "c")), "validation_alias "),
    (int, Field(validation_alias=AliasPath("a", "b")), "validation_alias "),
    (int, Field(validation_alias=AliasChoices("a", AliasPath("b", 0))), "validation_alias "),
    (Annotated[str, AfterValidator(elsewhere)], ..., "function elsewhere"),
    (dict[int, str], ..., "keys other than text"),
    (list[int | str], ..., "M.field[items]: node type 'union'"),
    (models.IntelRdt, ..., "a model from elsewhere, IntelRdt"),
]


def test_fields_that_the_compiler_does_not_know_are_refused_by_name() -> None:
    for annotation, default, words in FIELDS_REFUSED:
        fields: dict[str, Any] = {"field": (annotation, default)}
        with pytest.raises(
            BuildError, match=f"M.field.*{re.escape(words.removeprefix('M.field'))}"
        ):
            compile_models(as_module(create_model("M", __base__=models.Model, **fields)))


def test_what_a_schema_does_not_show_is_refused_too() -> None:
    def make_model(**more: Any) -> type[BaseModel]:  # noqa: ANN401  what else is in its class
        kind: Any = type(models.Model)
        made: type[BaseModel] = kind("M", (models.Model,), {"__annotations__": {"a": int}, **more})
        return made

    for model, said in (
        (make_model(double=method), "M.double: something that is no field"),
        (make_model(double=computed_field(method)), "M.double: something that is no field"),
        (
            make_model(model_post_init=lambda *_: None),
            "M.model_post_init: something that is no field",
        ),
        (make_model(model_config=ConfigDict(strict=False)), "M: model_config"),
        (Child, "Child: a base other than Model"),
        (Endless, "one that holds itself"),
    ):
        with pytest.raises(BuildError, match=re.escape(said)):
            compile_models(as_module(model))
    module = as_module()
    module.__all__.append("helper")
    with pytest.raises(BuildError, match=r"made_up\.helper: something that is no model"):
        compile_models(module)
