# SPDX-License-Identifier: Apache-2.0
"""The compiled models against the pydantic ones: the same documents accepted, the same values, the same first error."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    computed_field,
    create_model,
)

import pyz
from hook import models, models_compiled, names, validation
from hook.cli import options, options_compiled
from hook.node import models as node_models
from hook.node import models_compiled as node_models_compiled
from pyz import BuildError
from pyz.compile_models import compile_models
from tests.unit import strategies

ROOT = Path(__file__).resolve().parents[2]
COMPILED = ROOT / pyz.COMPILED["hook/models.py"]
BOTH = {models: models_compiled, node_models: node_models_compiled, options: options_compiled}
"""The forms of the models."""
STATES = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "tests" / "states").glob("*.json"))]
FIELDS: list[type[models.Model]] = [
    it
    for source in BOTH
    for it in vars(source).values()
    if isinstance(it, type) and issubclass(it, models.Model) and it.__module__ == source.__name__ and it.model_fields
]


def as_module(*classes: type[BaseModel]) -> ModuleType:
    """A module such as hook/models.py with these models in it."""
    module = ModuleType("made_up")
    everything = {"names": names, "Model": models.Model, **{cls.__name__: cls for cls in classes}}
    for cls in classes:
        cls.__module__ = "made_up"
    module.__dict__.update(everything, __all__=[*(cls.__name__ for cls in classes), "ValidationError"])
    return module


def load(text: str, directory: Path) -> ModuleType:
    path = directory / "compiled.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("compiled", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


each_model = pytest.mark.parametrize("model", FIELDS, ids=lambda model: model.__name__)


def examples(number: int) -> Callable[[Any], Any]:
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    return settings(max_examples=number, suppress_health_check=quiet)


def outcome(form: Any, name: str, document: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """What comes of it. The dump is compared as text: 1, 1.0 and True are not the same, and NaN is."""
    realised = strategies.realised(document, form)
    cls = getattr(form, name)
    try:
        got = cls.model_validate(realised)
    except (models.ValidationError, validation.ValidationError) as error:
        first = error.errors()[0]
        return "refused", first["loc"], first["type"]
    return "accepted", repr(got.model_dump())


def forms(model: type[BaseModel]) -> tuple[ModuleType, ModuleType]:
    """The modules that hold both forms of a model."""
    return next(pair for pair in BOTH.items() if pair[0].__name__ == model.__module__)


def differs(one: Any, other: Any, name: str, document: Any) -> str:  # noqa: ANN401
    """Empty if both forms make the same of it."""
    ours, theirs = outcome(other, name, document), outcome(one, name, document)
    return "" if ours == theirs else f"{name}: compiled {ours!a}, pydantic {theirs!a}, of {document!a}"


# --- The models of the hook


@each_model
@pytest.mark.parametrize(("kind", "number"), [("valid", 40), ("nearly_valid", 150)])
def test_documents_are_judged_alike(model: type[BaseModel], kind: str, number: int) -> None:
    @examples(number)
    @given(getattr(strategies, kind)(model))
    def run(document: Any) -> None:  # noqa: ANN401
        is_accepted = kind != "valid" or outcome(forms(model)[0], model.__name__, document)[0] == "accepted"
        assert is_accepted, "strategies.ACCEPTED lacks a function?"
        assert not differs(*forms(model), model.__name__, document)

    run()


@each_model
def test_each_strange_value_in_each_place_is_judged_alike(model: type[BaseModel]) -> None:
    for document in strategies.substitutions(model):
        assert not differs(*forms(model), model.__name__, document)


@pytest.mark.parametrize("state", STATES, ids=range(len(STATES)))
def test_states_of_real_runtimes_are_read_alike(state: dict[str, Any]) -> None:
    assert outcome(models, "State", state)[0] == "accepted"
    assert not differs(models, models_compiled, "State", state)
    assert not differs(models, models_compiled, "Annotations", state.get("annotations") or {})


@each_model
def test_a_dump_reads_back_as_the_same_value(model: type[BaseModel]) -> None:
    @examples(30)
    @given(strategies.valid(model))
    def run(document: Any) -> None:  # noqa: ANN401
        compiled = getattr(forms(model)[1], model.__name__)
        source, ours = model.model_validate(document), compiled.model_validate(document)
        by_alias = source.model_dump(by_alias=True)
        assert model.model_validate(by_alias) == source
        assert compiled.model_validate(by_alias) == ours == compiled(**document)
        if by_alias == source.model_dump():  # no aliases, as in all that is written
            assert compiled.model_validate(ours.model_dump()) == ours

    run()


class Text(str):
    """A text that is not of the type itself."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("check", "value", "expected"),
    [
        (validation.TEXT, Text("x"), "x"),
        ((validation.check_list, (), validation.FLAG), [True, False], [True, False]),
        ((validation.check_int, (), None, None), 7, 7),
        ((validation.check_float, (), None, None), 7, 7.0),
    ],
)
def test_a_check_gives_a_value_of_the_type_itself(check: tuple[Any, ...], value: object, expected: object) -> None:
    """Also where no model of ours leads to it."""
    found = check[0](check, value, "Model", ("field",))
    assert (found, type(found)) == (expected, type(expected))


def asserts(_text: str) -> str:
    raise AssertionError("never")


@pytest.mark.parametrize(
    ("check", "value", "problem"),
    [
        ((validation.check_list, (), validation.TEXT), "x", "Input should be a valid list"),
        ((validation.check_float, (), None, None), 10**400, "Input should be a valid number"),
        ((validation.check_named, (), asserts), "x", "Assertion failed, never"),
    ],
)
def test_a_check_says_what_is_wrong_and_where(check: tuple[Any, ...], value: object, problem: str) -> None:
    with pytest.raises(models_compiled.ValidationError) as caught:
        check[0](check, value, "Model", ("field", 3))
    assert str(caught.value) == f"Model: field.3: {problem}"


# --- What else both forms do


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


def test_mutable_defaults_are_fresh(form: Any) -> None:  # noqa: ANN401
    one, other = ((form.Options(), form.KeyState(key="a", kind="pod")) for _ in range(2))
    for mine, theirs in zip(one, other):
        mutable = [it for it in mine.model_dump() if isinstance(getattr(mine, it), (list, dict))]
        assert len(mutable) >= 2
        assert not [it for it in mutable if getattr(mine, it) is getattr(theirs, it)]


def test_models_are_frozen_and_equal_by_type_and_fields(form: Any) -> None:  # noqa: ANN401
    index = form.Index(key="a")
    with pytest.raises(form.ValidationError, match="frozen"):
        index.key = "b"
    with pytest.raises(form.ValidationError, match="frozen"):
        del index.key
    assert {index: 1}[form.Index(key="a", version=1)] == 1
    assert index == form.Index(key="a", version=1)
    assert index != form.Index(key="b")
    assert form.IntelRdt() != form.Linux()
    assert index != {"version": 1, "key": "a"}


def test_an_error_tells_an_operator_what_and_where(form: Any) -> None:  # noqa: ANN401
    member = {"pid": 0, "starttime": 1, "group": "/x/mon_groups/oci-1"}
    with pytest.raises(ValueError, match="greater than or equal to 1") as caught:
        form.KeyState(key="a", kind="pod", members={"b": member})
    assert caught.value.errors()[0]["loc"] == ("members", "b", "pid")  # type: ignore[attr-defined]
    assert "members.b.pid" in str(caught.value)
    assert "KeyState" in str(caught.value)

    with pytest.raises(form.ValidationError, match="Field required") as missing:
        form.State.model_validate({})
    assert missing.value.errors()[0]["loc"] == ("ociVersion",)


# --- The compiled text


@pytest.mark.parametrize("source", BOTH, ids=lambda module: module.__name__)
def test_the_committed_text_is_not_stale(source: ModuleType) -> None:
    compiled = Path(BOTH[source].__file__ or "")
    assert compiled == ROOT / pyz.COMPILED[str(Path(source.__file__ or "").relative_to(ROOT))]
    assert compiled.read_text(encoding="utf-8") == compile_models(source), "run: python3 build.py compile"


def test_callers_use_nothing_of_pydantics_models_that_the_compiled_ones_lack() -> None:
    """Their types are pydantic's to mypy."""
    callers = [path for path in COMPILED.parent.rglob("*.py") if str(path.relative_to(ROOT)) not in pyz.COMPILED]
    used = {name for path in callers for name in re.findall(r"\.(model_\w+)", path.read_text(encoding="utf-8"))}
    assert {it for it in used if not (hasattr(validation.Form, it) or hasattr(validation.Model, it))} == set()
    assert used


# --- What the compiler refuses


def test_a_form_that_lacks_a_check_is_found_out(tmp_path: Path) -> None:
    """The comparison can fail: here the compiled form has another bound for `pid`."""
    text = COMPILED.read_text(encoding="utf-8")
    weaker = load(text.replace("(check_int, (), 0, 2147483647)", "(check_int, (), -1, 2147483647)"), tmp_path)
    state = {**STATES[0], "pid": -1}
    assert outcome(models, "State", state)[0] == "refused"
    assert differs(models, weaker, "State", state)
    assert not differs(models, models_compiled, "State", state)


def elsewhere(text: str) -> str:
    return text


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "any": (Any, ..., "node type 'any'"),
    "union": (int | str, ..., "node type 'union'"),
    "pattern": (Annotated[str, Field(pattern="a")], ..., "key 'pattern' of node type 'str'"),
    "allow_inf_nan": (Annotated[float, Field(allow_inf_nan=False)], ..., "key 'allow_inf_nan' of node type 'float'"),
    "infinite bound": (Annotated[float, Field(le=float("inf"))], ..., "bound inf"),
    "lax field": (Annotated[int, Field(strict=False)], ..., "key 'strict' of node type 'int'"),
    "literal of numbers": (Literal["a", 1], ..., "a literal that is no text"),
    "default_factory": (list[str], Field(default_factory=list), "key 'default_factory' of node type 'default'"),
    "default of another type": (float, 1, "default 1, which is not"),
    "default that is refused": (Annotated[int, Field(ge=1)], 0, "default 0, which is not"),
    "default None of no Optional": (int, None, "default None, which is not"),
    "default that is a model": (models.IntelRdt, models.IntelRdt(), "default IntelRdt"),
    "infinite default": (float, float("inf"), "default inf"),
    "choice of aliases": (int, Field(validation_alias=AliasChoices("a", "b")), "validation_alias "),
    "before": (Annotated[str, BeforeValidator(names.component)], ..., "node type 'function-before'"),
    "function from elsewhere": (Annotated[str, AfterValidator(elsewhere)], ..., "function elsewhere"),
    "lambda": (Annotated[str, AfterValidator(lambda text: text)], ..., "function <lambda>"),
    "function of a number": (Annotated[int, AfterValidator(names.component)], ..., "function component on something"),
    "keys that are numbers": (dict[int, str], ..., "keys other than text"),
    "in a list": (list[int | str], ..., "M.field[items]: node type 'union'"),
    "in a dict's keys": (dict[Annotated[str, Field(pattern="a")], str], ..., "M.field[keys]: key 'pattern'"),
    "in a dict": (dict[str, bytes | None], ..., "M.field[values]: node type 'bytes'"),
    "model from elsewhere": (models.IntelRdt, ..., "a model from elsewhere, IntelRdt"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_compiler_does_not_know_is_refused_by_name(case: str) -> None:
    annotation, default, words = REFUSED[case]
    fields: dict[str, Any] = {"field": (annotation, default)}
    model = create_model("M", __base__=models.Model, **fields)
    with pytest.raises(BuildError) as caught:
        compile_models(as_module(model))
    assert words in str(caught.value)
    assert str(caught.value).startswith("M.field")


def method(model: Any) -> int:  # noqa: ANN401
    return int(model.a)


class Child(models.IntelRdt):
    b: int


class Endless(models.Model):
    inner: Endless | None = None


def make_model(name: str, base: Any = models.Model, **more: Any) -> type[BaseModel]:  # noqa: ANN401
    """A model with one field, `a`, and what else is in its class."""
    made: type[BaseModel] = type(base)(name, (base,), {"__module__": "x", "__annotations__": {"a": int}, **more})
    return made


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (make_model("Method", double=method), "Method.double: something that is no field"),
        (make_model("Computed", double=computed_field(method)), "Computed.double: something that is no field"),
        (make_model("Post", model_post_init=lambda *_: None), "Post.model_post_init: something that is no field"),
        (make_model("Lax", model_config=ConfigDict(strict=False)), "Lax: model_config"),
        (Child, "Child: a base other than Model"),
        (Endless, "one that holds itself"),
    ],
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_what_a_schema_does_not_show_is_refused_too(model: type[BaseModel], said: str) -> None:
    with pytest.raises(BuildError, match=re.escape(said)):
        compile_models(as_module(model))


def test_anything_else_in_the_module_is_refused() -> None:
    module = as_module()
    module.__all__.append("helper")
    with pytest.raises(BuildError, match=r"made_up\.helper: something that is no model"):
        compile_models(module)
