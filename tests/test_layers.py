"""Layers as adapters see them: parameters, code paths, a person's own layer, the table of differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attention_conformance.backends.masks import LayerMasks
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.registry import UsageError, function_implementation, load
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import draw
from attention_conformance.suite.spec.operators import OPERATORS
from tests.runtimes import of, verdict_of

PLAIN = "multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/self"
CAUSAL = "multi-head/causal/mha/f32/b2h4q7k7d3/e12.12.12.12/self"
PADDED = "multi-head/causal+pad/mha/f32/b2h4q7k7d3/e12.12.12.12/self"

OWN = '''
import torch
from torch import nn

class Free(nn.Module):
    """Its temperature is no parameter of multi-head attention: the layer keeps its own ones."""
    def __init__(self, query_width, heads):
        super().__init__()
        self.heads = heads
        self.temperature = nn.Parameter(torch.ones(()))
        self.qkv = nn.Linear(query_width, 3 * query_width)
        self.out = nn.Linear(query_width, query_width)

    def projected(self, x):
        B, L, _ = x.shape
        return [t.view(B, L, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)]

    def dropped(self, weights):
        return weights

    def forward(self, x, causal=False, valid=None):
        B, L, E = x.shape
        q, k, v = self.projected(x)
        s = q @ k.transpose(-1, -2) * self.temperature / (E // self.heads) ** 0.5
        if causal:
            s = s.masked_fill(torch.ones(L, L).triu(1).bool(), -torch.inf)
        if valid is not None:
            s = s.masked_fill(~valid[:, None, None], -torch.inf)
        return self.out((self.dropped(s.softmax(-1)) @ v).transpose(1, 2).reshape(B, L, E))

class Loaded(Free):
    def load_attention(self, p):
        E = self.out.in_features
        names = ("query", "key", "value")
        self.qkv.weight.data = torch.cat([p[f"{n}_kernel"].reshape(E, E).T for n in names])
        self.qkv.bias.data = torch.cat([p[f"{n}_bias"].reshape(-1) for n in names])
        self.out.weight.data = p["output_kernel"].reshape(E, E).T
        self.out.bias.data = p["output_bias"]

class Scaled(Loaded):
    """sqrt(d_model) instead of sqrt(d_head)."""
    def __init__(self, query_width, heads):
        super().__init__(query_width, heads)
    def forward(self, x, causal=False, valid=None):
        with torch.no_grad():
            self.qkv.weight[: x.shape[-1]] /= self.heads**0.5
            out = super().forward(x, causal, valid)
            self.qkv.weight[: x.shape[-1]] *= self.heads**0.5
        return out

class Leaky(Free):
    """The causal flag is lost where keys are padded."""
    def forward(self, x, causal=False, valid=None):
        return super().forward(x, causal and valid is None, valid)

class Placed(Free):
    """Positions are known to it."""
    def forward(self, x, causal=False, valid=None):
        place = torch.linspace(0, 1, x.shape[1], dtype=x.dtype)
        return super().forward(x + place[:, None], causal, valid)

class TwoArrays(nn.Module):
    def __init__(self, query_width):
        super().__init__()
    def forward(self, query, memory):
        return query

def needs_more(query_width, heads, depth):
    return None
'''


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "layers.py"
    path.write_text(OWN)
    return path


def judged(check: str, text: str, implementation: Implementation) -> Verdict:
    return verdict_of(implementation, text, check)


def user_layer(backend: Any, own: Path, name: str) -> Any:
    return function_implementation(backend, f"{own}:{name}", {}, "multi-head")[0]


def test_a_layer_that_takes_parameters_is_judged_by_the_reference(
    torch_backend: Any, own: Path
) -> None:
    right = user_layer(torch_backend, own, "Loaded")
    for case in (PLAIN, PADDED):
        verdict = judged("values", case, right)
        assert verdict.status == "pass", verdict.message
    wrong = judged("values", PLAIN, user_layer(torch_backend, own, "Scaled"))
    assert (wrong.status, wrong.kind) == ("fail", "value")


def test_a_layer_with_parameters_of_its_own_is_judged_by_what_needs_none(
    torch_backend: Any, own: Path
) -> None:
    free, leaky = user_layer(torch_backend, own, "Free"), user_layer(torch_backend, own, "Leaky")
    assert judged("values", PLAIN, free).status == "unsupported"
    assert "takes no parameters" in judged("values", PLAIN, free).message
    for check, text in (("future", PADDED), ("future", CAUSAL), ("poison", PADDED)):
        assert judged(check, text, free).status == "pass"
    assert judged("future", CAUSAL, leaky).status == "pass"
    assert judged("future", PADDED, leaky).kind == "leak"
    assert judged("batch_independence", PLAIN, free).status == "unsupported"
    double = PLAIN.replace("f32", "f64")
    for check in ("batch_independence", "key_permutation"):
        assert judged(check, double, free).status == "pass"
    assert (
        judged("key_permutation", double, user_layer(torch_backend, own, "Placed")).kind
        == "unequal"
    )


def test_what_a_layer_does_not_take_is_lacking(torch_backend: Any, own: Path) -> None:
    declared = user_layer(torch_backend, own, "Loaded").declared
    lacks = declared.refusals
    assert lacks["grouped-heads"] == "the factory has no parameter key_heads"
    assert lacks["mask"] == "the layer has no parameter mask"
    assert lacks["cross"] == "the layer takes one array"
    assert "native-causal" in declared.features


@pytest.mark.parametrize(
    ("name", "message"),
    [("TwoArrays", "takes 2 positional arrays"), ("needs_more", "depth")],
)
def test_what_cannot_be_a_layer_says_why(
    torch_backend: Any, own: Path, name: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        user_layer(torch_backend, own, name)


def test_a_keras_layer_and_a_flax_module_are_judged(tmp_path: Path) -> None:
    pytest.importorskip("flax")
    path = tmp_path / "module.py"
    path.write_text(
        "import flax.linen as nn\n"
        "class Bound:\n"
        "    def __init__(self, query_width, heads, dtype):\n"
        "        self.module = nn.MultiHeadDotProductAttention(heads, dtype=dtype)\n"
        "    def __call__(self, query, key, value, mask=None):\n"
        "        return self.module.apply(self.variables, query, key, value, mask=mask)\n"
        "    def load_attention(self, p):\n"
        "        names = {'query': 'query', 'key': 'key', 'value': 'value', 'out': 'output'}\n"
        "        self.variables = {'params': {n: {'kernel': p[f'{g}_kernel'], 'bias': p[f'{g}_bias']}\n"
        "                                     for n, g in names.items()}}\n"
    )
    layer = function_implementation(load("jax"), f"{path}:Bound", {}, "multi-head")[0]
    assert judged("values", PADDED, layer).status == "pass"
    cross = "multi-head/bool.bhqk/mha/f32/b2h3q5k9d4/e12.12.12.12/head/dense"
    assert judged("values", cross, layer).message == "the layer has no parameter return_weights"


def test_the_fast_path_is_what_runs(torch_backend: Any) -> None:
    from attention_conformance.backends._torch.modules import witnessed

    by_name = {i.name: i for i in torch_backend.implementations()}
    fast, slow = by_name["nn-mha-fast"], by_name["nn-mha"]
    candidates = [c for c in cases("standard") if c.operator is fast.operator]
    supported = [c for c in candidates if fast.unsupported(c) is None]
    assert len(supported) > 20
    for case in supported:
        assert witnessed(fast.prepare(draw(case)))[1], case.id
        assert not witnessed(slow.prepare(draw(case)))[1], case.id
    crossed = draw(Case.parse("multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12"))
    with pytest.raises(RuntimeError, match="fast path was not taken"):
        fast.prepare(crossed)()


def test_paths_name_what_is_wrong(torch_backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = of(torch_backend, "nn-mha")
    whole = type(layer).paths

    def broken(self: Any, inputs: Any) -> Any:
        other = inputs.replace(query=2 * inputs.query, key=2 * inputs.key, self_attention=False)
        return {**whole(self, inputs), "doubled": self.prepare(other)}

    monkeypatch.setattr(type(layer), "paths", broken)
    verdict = judged("paths", PLAIN, layer)
    assert verdict.status == "fail"
    assert verdict.message.startswith("1 of ")
    assert "paths (doubled): " in verdict.message


def test_two_paddings_are_the_keys_that_are_valid_in_both() -> None:
    x = draw(Case.parse("dot/pad+causal+padempty/mha/f32/b9h1q35k3d6/e6.6.6.6"))
    taken = LayerMasks.of(x)
    assert taken.causal
    assert taken.rest is None
    assert x.mask is not None
    first, _, second = (part.dense(x.sizes) for part in x.mask.parts)
    assert taken.valid is not None
    assert (taken.valid == (first & second)[:, 0, 0]).all()
    assert not taken.valid[-1].any()


def layer_dtypes(level: str) -> dict[tuple[Any, ...], set[str]]:
    """The dtypes, by operator, sizes and widths, in which any check asks a layer."""
    dtypes: dict[tuple[Any, ...], set[str]] = {}
    for check in all_checks().values():
        for case in check.cases(level):
            if isinstance(case, Case) and case.operator.is_layer:
                key = (case.operator, case.sizes, case.widths)
                dtypes.setdefault(key, set()).add(case.dtype.name)
    return dtypes


def test_layers_are_asked_in_few_sizes_and_dtypes() -> None:
    """JAX compiles 10 to 60 operations anew for each of these, at 25 ms and more: it is what a run
    costs. A layer in one size adds four at full, as the gated one and the padded sample alone did."""
    assert sum(map(len, layer_dtypes("smoke").values())) <= 65
    assert sum(map(len, layer_dtypes("standard").values())) <= 185
    assert sum(map(len, layer_dtypes("full").values())) <= 215


def test_shared_sizes_are_asked_in_every_dtype() -> None:
    layers = [operator for operator in OPERATORS.values() if operator.is_layer]
    every = {(o, token) for o in layers for token in o.asks.common_sizes}
    at_standard, at_full = layer_dtypes("standard"), layer_dtypes("full")
    assert at_standard.keys() == at_full.keys()
    shared = {key for key in at_standard if (key[0], key[1].token) in every}
    assert {(operator, sizes.token) for operator, sizes, _ in shared} == every
    for key in shared:
        assert at_standard[key] == set(DTYPES), key
