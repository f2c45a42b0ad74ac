"""Layers as adapters see them: parameters, code paths, the sizes in which they are asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attention_conformance.backends.masks import LayerMasks
from attention_conformance.backends.registry import function_implementation, load
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases
from attention_conformance.suite.spec.inputs import draw
from tests.runtimes import verdict_of

PLAIN = "multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/self"
PADDED = "multi-head/causal+pad/mha/f32/b2h4q7k7d3/e12.12.12.12/self"


def test_a_flax_module_that_loads_its_parameters_is_judged(tmp_path: Path) -> None:
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
    assert verdict_of(layer, PADDED).status == "pass"
    cross = "multi-head/bool.bhqk/mha/f32/b2h3q5k9d4/e12.12.12.12/head/dense"
    assert verdict_of(layer, cross).message == "the layer has no parameter return_weights"


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
