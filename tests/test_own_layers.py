"""A person's own layer: what it reads, what it is handed, and dropout."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.backends.registry import function_implementation
from attention_conformance.backends.user.layer import UserLayer
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.case import Case
from tests.runtimes import verdict_of

FUNCTIONS = Path(__file__).parent / "functions"
PLAIN = "multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/self"
CAUSAL = PLAIN.replace("/none/", "/causal/")
PADDED = PLAIN.replace("/none/", "/causal+pad/")
DOUBLE = PLAIN.replace("f32", "f64")
DROPPED = "multi-head/none/mha/f32/b32h2q4k4d8/e16.16.16.16/self"
NORM = "layer-norm/none/mha/f32/b4h1q4k4d4/e4.4.4.4/self"

OWN = '''
import torch
from torch import nn
from tests.diagnosed.layers import Right

class Loaded(Right):
    pass

class Free(Right):
    """Its temperature is no parameter of multi-head attention: the layer keeps its own ones."""
    @property
    def load_attention(self):
        raise AttributeError

    def __init__(self, query_width, heads):
        super().__init__(query_width, heads)
        self.temperature = nn.Parameter(torch.ones(()))

    def projected(self, x):
        query, key, value = super().projected(x)
        return query * self.temperature, key, value

class Leaky(Free):
    """The causal flag is lost where keys are padded."""
    def forward(self, x, causal=False, valid=None):
        return super().forward(x, causal and valid is None, valid)

class Unbiased(Right):
    def __init__(self, query_width, heads, bias=False):
        super().__init__(query_width, heads)
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            linear.bias = None

    def load_biases(self, parameters, names):
        pass

class Folded(Right):
    def load_attention(self, parameters):
        super().load_attention(parameters)
        self.folded = self.q_proj.weight.detach().clone()

    def projected(self, x):
        _, key, value = super().projected(x)
        return nn.functional.linear(x, self.folded, self.q_proj.bias), key, value

class Dropping(Right):
    def __init__(self, query_width, heads, rate=0.0):
        super().__init__(query_width, heads)
        self.rate = rate

    def dropped(self, weights):
        return nn.functional.dropout(weights, self.rate, self.training)

class Norm(nn.Module):
    def __init__(self, query_width, epsilon=1e-5):
        super().__init__()
        self.epsilon = epsilon
        self.norm = nn.LayerNorm(query_width, eps=epsilon)

    def load_attention(self, p):
        self.norm.weight.data, self.norm.bias.data = p["gain"], p["offset"]

    def forward(self, x):
        return self.norm(x)

class Tuned(Right):
    # The attributes are called like claims, or nearly so, and claim nothing.
    head_size, max_length, dtype = 64, 1, "f32"

    def scale(self):
        return self.heads**-0.5

    def forward(self, x, causal=False, valid=None, block=16):
        return super().forward(x, causal, valid)

'''


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "layers.py"
    path.write_text(OWN)
    return path


def user_layer(backend: Any, own: Path, name: str) -> Any:
    like = "layer-norm" if name == "Norm" else "multi-head"
    return function_implementation(backend, f"{own}:{name}", {}, like)[0]


@pytest.mark.parametrize(
    ("name", "check", "case", "status", "said"),
    [
        ("Loaded", "values", PLAIN, "pass", ""),
        ("Loaded", "values", PADDED, "pass", ""),
        # A layer with parameters of its own is judged by what needs none.
        ("Free", "values", PLAIN, "unsupported", "takes no parameters"),
        ("Free", "batch_independence", PLAIN, "unsupported", ""),
        ("Free", "batch_independence", DOUBLE, "pass", ""),
        ("Free", "key_permutation", DOUBLE, "pass", ""),
        ("Free", "poison", PADDED, "pass", ""),
        ("Free", "future", CAUSAL, "pass", ""),
        ("Free", "future", PADDED, "pass", ""),
        ("Leaky", "future", CAUSAL, "pass", ""),
        ("Leaky", "future", PADDED, "fail", "leak"),
        ("Unbiased", "values", PLAIN, "unsupported", "load_attention never reads query_bias"),
        ("Unbiased", "values", CAUSAL.replace("/self", "/nobias/self"), "pass", ""),
        ("Folded", "values", PLAIN, "pass", ""),
        ("Folded", "stateless", PLAIN, "fail", "stale: after parameters were changed in place"),
        ("Loaded", "stateless", PLAIN, "pass", ""),
        ("Dropping", "dropout", DROPPED, "pass", ""),
        ("Loaded", "dropout", DROPPED, "unsupported", ""),
        ("Norm", "values", NORM, "pass", ""),
        ("Tuned", "values", PLAIN, "pass", ""),
    ],
)
def test_a_layer_is_judged_by_what_it_takes(
    torch_backend: Any, own: Path, name: str, check: str, case: str, status: str, said: str
) -> None:
    verdict = verdict_of(user_layer(torch_backend, own, name), case, check)
    assert verdict.status == status, verdict.message
    assert said in f"{verdict.kind}: {verdict.message}"


def test_a_layer_without_biases_is_asked_every_case_without_them(
    torch_backend: Any, own: Path
) -> None:
    layer, other = (user_layer(torch_backend, own, name) for name in ("Unbiased", "Loaded"))
    assert (
        layer.nearest_supported(Case.parse(bare := PLAIN.replace("/self", "/nobias/self"))) is None
    )
    assert layer.nearest_supported(Case.parse(PLAIN)) == Case.parse(bare)
    cells = [
        cell for check in all_checks().values() for cell in check.cells("smoke", [layer, other])
    ]
    supported_cells = [c for c in cells if c.check.unsupported(c.implementation, c.case) is None]
    of_layer = sum(c.implementation is layer for c in supported_cells)
    assert of_layer > 0.8 * (len(supported_cells) - of_layer) > 10


def test_a_layer_is_told_what_it_names_and_which_parameter_adds_cells() -> None:
    """What it takes besides, by **keywords, a base class takes."""
    pytest.importorskip("tensorflow")
    function = f"{FUNCTIONS / 'keras_layers.py'}:Named"
    of = Plan.make(Options(("tf",), function=(function,), like="multi-head", level="smoke"))
    (layer,) = of.functions
    assert isinstance(layer, UserLayer)
    assert layer.factory.taken == {"query_width", "heads", "dtype"}
    assert layer.called.taken == {"valid"}
    (note,) = of.notes
    told = re.fullmatch(
        r"tf:Named: a parameter mask of the layer would add (\d+) cells, bias of the layer \d+, "
        r"causal of the layer \d+",
        note,
    )
    assert told is not None, note
    # The same layer with a mask is asked so many cells more.
    checks = all_checks().values()
    cells = [(check, cell.case) for check in checks for cell in check.cells("smoke", [layer])]
    other = layer.with_one_more()["mask of the layer"]
    asked, more = (
        sum(check.unsupported(one, case) is None for check, case in cells) for one in (layer, other)
    )
    assert more - asked == int(told[1]) > 20
    assert verdict_of(layer, PLAIN.replace("/none/", "/pad/")).status == "pass"
