"""A person's class as it is: how it is made and called, and which parameters it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attention_conformance import judge_module
from attention_conformance.backends.user.construct import (
    CONSTRUCTOR,
    Maker,
    Settings,
    operand_order,
)
from attention_conformance.backends.user.found import Variable, assignments_for
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import draw
from tests.runtimes import user_function, verdict_of

FUNCTIONS = Path(__file__).parent / "functions"
MULTI_HEAD = "multi-head/none/mha/f32/b2h3q5k9d4/e12.12.12.12"
ADDITIVE = "additive/none/mha/f32/b2h1q5k9d16v14/e12.10.14.14"

FOUND = (
    ("AdditiveAttention", "additive", "W_k = key; W_q = query; w_v = score"),
    ("CausalSelfAttention", "multi-head", "c_attn = query, key, value; c_proj = output"),
    ("Interleaved", "multi-head", "qkv = query, key, value (head by head); proj = output"),
    ("MultiHeadedAttention", "multi-head",
     "linears.0 = query; linears.1 = key; linears.2 = value; linears.3 = output"),
    ("JoinedHeads", "multi-head",
     "W_q = query; W_k = key; W_v = value; no output projection: the suite adds one"),
    ("Heads", "multi-head",
     "heads.*.key = key; heads.*.query = query; heads.*.value = value; proj = output"),
)  # fmt: skip
"""A right class, its operator and how its parameters are read. What wrong twins are told is frozen
(told-functions.txt)."""


@pytest.fixture(scope="module")
def classes() -> Any:
    pytest.importorskip("torch")
    from tests.functions import own_classes

    return own_classes


def asked(report: Any) -> set[str]:
    """The cases that were judged."""
    table = report.table
    return {*table["case"][table["status"].isin(["pass", "fail"])]}


@pytest.mark.parametrize(("name", "like", "found"), FOUND)
def test_a_right_class_is_judged_by_value_and_passes(
    classes: Any, name: str, like: str, found: str
) -> None:
    report = judge_module(getattr(classes, name), like=like, checks=["values"], dtypes=["f32"])
    assert report.passed
    assert f"torch:{name}: parameters: {found}" in report.notes


def test_a_class_that_is_always_causal_is_asked_causal_cases_alone(classes: Any) -> None:
    report = judge_module(classes.CausalSelfAttention, checks=["values"])
    assert len(asked(report)) > 4
    assert all(case.startswith("multi-head/causal/") for case in asked(report))
    assert "torch:CausalSelfAttention: always causal: only causal cases are tested" in report.notes


def test_a_class_with_other_parameters_is_not_judged_enough(classes: Any) -> None:
    report = judge_module(classes.Gram, checks=["values", "contract"], raises=False)
    assert not report.passed
    assert not (report.table["status"] == "fail").any()
    assert "None of its" in report.shortfalls[0]
    (note,) = (note for note in report.notes if "parameters" in note)
    assert "name them as in docs/layers.md, or add a method load_attention(parameters)" in note


OWN = "multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/self"


FLAX = (
    ("SelfAttention", "k_proj = key; out_proj = output; q_proj = query; v_proj = value",
     "multi-head/bool.bhqk/mha/{}/b2h4q7k7d3/e12.12.12.12/self/dense", "pass"),
    ("ScaledByWidth", "k_proj = key; out_proj = output; q_proj = query; v_proj = value",
     "multi-head/bool.bhqk/mha/{}/b2h4q7k7d3/e12.12.12.12/self/dense", "fail"),
    ("CausalSelfAttention", "c_attn = query, key, value; c_proj = output",
     "multi-head/causal/mha/{}/b2h4q7k7d3/e12.12.12.12/self", "pass"),
    ("CrossAttention", "key = key; out = output; query = query; value = value",
     "multi-head/none/mha/{}/b2h3q5k9d4/e12.12.12.12", "pass"),
)  # fmt: skip
"""A module, how its parameters are read, a case, and its verdict."""


DROPPED = "multi-head/none/mha/f32/b32h2q4k4d8/e16.16.16.16/self"
"""A case of which two checks of dropout are asked."""


@pytest.mark.seldom
@pytest.mark.parametrize(("name", "found", "case", "status"), FLAX)
def test_a_module_of_flax_is_judged_by_value(name: str, found: str, case: str, status: str) -> None:
    """With parameters that are set, of NNX and of Linen. To load a module takes seconds."""
    pytest.importorskip("flax")
    place = f"{FUNCTIONS / 'own_flax_classes.py'}:{name}"
    layer = user_function(place, "multi-head", "jax")
    assert layer.facts.found[0] == found
    assert layer.facts.dtypes == (), "parameters are set in every dtype"
    for dtype in ("f32", "bf16") if status == "pass" else ("f32",):
        verdict = verdict_of(layer, case.format(dtype))
        assert (verdict.status, verdict.kind) == (status, "value" if status == "fail" else "")
    more = {OWN: ("stateless", "contract", "gradients"), DROPPED: ("dropout", "dropout_off")}
    for own, checks in more.items():
        asked = name == "CrossAttention" or (name, own) == ("SelfAttention", OWN)
        for check in checks if asked else ():
            assert verdict_of(layer, own, check).status == "pass", check


def test_an_isolated_class_is_read_in_the_right_way() -> None:
    pytest.importorskip("torch")
    place = f"{FUNCTIONS / 'own_classes.py'}:Interleaved"
    options = Options(("torch",), function=(place,), like="multi-head", untrusted=True)
    plan = Plan.make(options)
    assert any(note.endswith("qkv = query, key, value (head by head); proj = output")
               for note in plan.notes)  # fmt: skip
    layer: Any = plan.functions[0]
    assert verdict_of(layer, OWN).status == "pass"
    layer.backend.link.kill(False)
    assert verdict_of(layer, OWN).status == "pass", "a new child reads it in the same way"


def square(*names: str, order: str = "oi") -> dict[str, Variable]:
    """Variables (12, 12) with these names."""
    return {name: Variable((12, 12), order) for name in names}


@pytest.mark.parametrize(
    ("variables", "first", "count"),
    [
        (square("wq.weight", "wk.weight", "wv.weight", "wo.weight"),
         "wq = query; wk = key; wv = value; wo = output", 1),
        ({**square("to_q.weight", "to_out.0.weight"), "to_kv.weight": Variable((24, 12), "oi")},
         "to_q = query; to_out.0 = output; to_kv = key, value", 6),
        ({"in_proj_weight": Variable((36, 12)), "in_proj_bias": Variable((36,)),
          **square("out_proj.weight"), "out_proj.bias": Variable((12,))},
         "in_proj = query, key, value; out_proj = output", 6),
        # Raw matrices may be transposed.
        (square("W_q", "W_k", "W_v", "W_o", order=""),
         "W_q = query; W_k = key; W_v = value; W_o = output", 2),
        # Names that do not tell: all orders fit.
        (square("a.weight", "b.weight", "c.weight", "d.weight"),
         "a = query; b = key; c = value; d = output", 24),
        # Keras' kernels of heads
        ({"query.kernel": Variable((12, 3, 4), "io"), "key.kernel": Variable((12, 3, 4), "io"),
          "value.kernel": Variable((12, 3, 4), "io"), "output.kernel": Variable((3, 4, 12), "io")},
         "query = query; key = key; value = value; output = output", 1),
        # One too many, or one too few: what the rest does is not known.
        (square("wq", "wk", "wv", "wo", "gate"), "", 0),
        (square("wq", "wk", "wv"),
         "wq = query; wk = key; wv = value; no output projection: the suite adds one", 1),
    ],
)  # fmt: skip
def test_parameters_are_found_by_names_and_shapes(
    variables: dict[str, Variable], first: str, count: int
) -> None:
    found = assignments_for(variables, Case.parse(MULTI_HEAD))
    assert len(found) == count
    assert not found or found[0].text == first


@pytest.mark.parametrize(
    ("names", "case", "given"),
    [
        (("d_k", "d_v"), MULTI_HEAD, {"d_k": 4, "d_v": 4}),
        (("d_model", "n_heads", "dropout"), MULTI_HEAD,
         {"d_model": 12, "n_heads": 3, "dropout": 0.0}),
        # The width of keys beside that of queries, and else the size of a head.
        (("key_size", "query_size", "hidden_size"), ADDITIVE,
         {"key_size": 10, "query_size": 12, "hidden_size": 16}),
        (("key_size",), MULTI_HEAD, {"key_size": 4}),
        (("embed_dim", "num_heads", "kdim", "max_len"), MULTI_HEAD,
         {"embed_dim": 12, "num_heads": 3, "kdim": 12, "max_len": 9}),
        # Operators without widths: those of all heads.
        (("d_model", "d_k"), "sdpa/none/mha/f32/b2h3q5k9d4", {"d_model": 12, "d_k": 4}),
    ],
)  # fmt: skip
def test_a_constructor_is_given_what_its_names_say(
    names: tuple[str, ...], case: str, given: dict[str, Any]
) -> None:
    space: dict[str, Any] = {}
    exec(f"def made({', '.join(names)}):\n    return locals()", space)
    assert Maker.of(space["made"], "made")(draw(Case.parse(case))) == given


def test_a_config_has_the_names_of_the_list_and_no_others() -> None:
    config = Settings(draw(Case.parse(MULTI_HEAD)))
    assert (config.n_embd, config["n_head"], getattr(config, "flash", 7)) == (12, 3, 7)
    assert list(config.names_read) == ["n_embd", "n_head"]
    with pytest.raises(AttributeError, match="a config no 'n_hidden_things': expected names of"):
        _ = config.n_hidden_things


def test_arrays_are_passed_in_the_order_of_their_names() -> None:
    assert operand_order(["query", "value", "key"]) == ["query", "value", "key"]
    assert operand_order(["V", "K", "Q"]) == ["value", "key", "query"]
    assert operand_order(["a", "b", "c"]) == ["query", "key", "value"]
    assert operand_order(["hidden_states"]) == ["query"]


def test_the_page_lists_every_name() -> None:
    page = (Path(__file__).parents[1] / "docs" / "layers.md").read_text()
    rows = [
        f"| {', '.join(f'`{name}`' for name in row.every_name)} | {row.text} |"
        for row in CONSTRUCTOR
    ]
    table = page.partition("| parameter | what it is given |\n|---|---|\n")[2]
    assert table.partition("\n\n")[0].splitlines() == rows
