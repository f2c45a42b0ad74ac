from functools import partial
from pathlib import Path

import pytest
from wide_heads import SelfAttention

from attention_conformance import AttentionFailure, judge_module, parametrize_attention

ASKED = {"checks": ["values", "poison", "future"], "dtypes": ("f32",)}
FORGETFUL = partial(SelfAttention, hides=False)
LATER = "masks of valid keys come with version 2"


def test_layer():
    report = judge_module(SelfAttention, backend="tf", **ASKED)
    assert report.passed


@parametrize_attention(
    FORGETFUL,
    backend="tf",
    like="multi-head",
    expected_failures={"values/*pad*": LATER, "poison/*/pad*": LATER},
    **ASKED,
)
def test_forgetful_layer(cell):
    cell()


@pytest.mark.xfail(raises=AttentionFailure, reason=LATER)
def test_forgetful_layer_by_a_mark():
    judge_module(FORGETFUL, backend="tf", **ASKED)


def test_forgetful_layer_by_a_manifest():
    manifest = Path(__file__).with_name("known.toml")
    report = judge_module(FORGETFUL, backend="tf", name="forgetful", expect=[manifest], **ASKED)
    assert report.run.totals["known"]


@parametrize_attention(FORGETFUL, backend="tf", like="multi-head", **ASKED)
def test_wrong(cell):
    cell()
