"""A person's own layer: what it reads, what it is handed, and dropout."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.backends.binder import arguments
from attention_conformance.backends.limits import Limits
from attention_conformance.backends.registry import UsageError, function_implementation
from attention_conformance.backends.user.layer import FACTORY, UserLayer
from attention_conformance.suite.__main__ import main
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import draw
from tests.test_layers import OWN, PLAIN, judged, user_layer

FUNCTIONS = Path(__file__).parent / "functions"
PADDED = "multi-head/pad/mha/f32/b2h4q7k7d3/e12.12.12.12/self"

NORM = "layer-norm/none/mha/f32/b4h1q4k4d4/e4.4.4.4/self"

MORE = """
class Unbiased(Free):
    def __init__(self, query_width, heads, bias=False):
        super().__init__(query_width, heads)
        self.qkv = nn.Linear(query_width, 3 * query_width, bias=False)
        self.out = nn.Linear(query_width, query_width, bias=False)

    def load_attention(self, p):
        E = self.out.in_features
        kernels = [p[f"{n}_kernel"].reshape(E, E).T for n in ("query", "key", "value")]
        self.qkv.weight.data = torch.cat(kernels)
        self.out.weight.data = p["output_kernel"].reshape(E, E).T

class Forgetful(Loaded):
    def load_attention(self, p):
        own = self.out.bias.data
        super().load_attention({n: p[n] for n in p if n != "output_bias"} | {"output_bias": own})

class Folded(Loaded):
    def load_attention(self, p):
        super().load_attention(p)
        self.folded = self.qkv.weight.detach().clone()

    def projected(self, x):
        B, L, _ = x.shape
        qkv = nn.functional.linear(x, self.folded, self.qkv.bias)
        return [t.view(B, L, self.heads, -1).transpose(1, 2) for t in qkv.chunk(3, -1)]

class Dropping(Loaded):
    def __init__(self, query_width, heads, rate=0.0):
        super().__init__(query_width, heads)
        self.rate = rate

    def dropped(self, weights):
        return nn.functional.dropout(weights, self.rate, self.training)

class Unscaled(Dropping):
    def forward(self, x, causal=False, valid=None):
        kept, self.rate = self.rate, 0.0
        out = super().forward(x, causal, valid)
        self.rate = kept
        return out * (torch.rand_like(out) < 1 - kept) if self.training else out

class Normalising(Loaded):
    def __init__(self, query_width, heads, qk_norm=False, epsilon=0.0):
        super().__init__(query_width, heads)
        sizes = [query_width // heads] * 2 if qk_norm else []
        self.norms = nn.ModuleList(nn.LayerNorm(D, eps=epsilon, bias=False) for D in sizes)

    def load_attention(self, p):
        super().load_attention(p)
        for name, norm in zip(("query", "key"), self.norms):
            norm.weight.data = p[f"{name}_gain"]

    def normed(self, norm, x):
        return norm(x)

    def projected(self, x):
        q, k, v = super().projected(x)
        if self.norms:
            q, k = (self.normed(norm, t) for norm, t in zip(self.norms, (q, k)))
        return q, k, v

class Rms(Normalising):
    def normed(self, norm, x):
        return nn.functional.rms_norm(x, x.shape[-1:], norm.weight, norm.eps)

class Norm(nn.Module):
    def __init__(self, query_width, epsilon=1e-5):
        super().__init__()
        self.epsilon = epsilon
        self.norm = nn.LayerNorm(query_width, eps=epsilon)

    def load_attention(self, p):
        self.norm.weight.data, self.norm.bias.data = p["gain"], p["offset"]

    def forward(self, x):
        return self.norm(x)

class Unrooted(Norm):
    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        deviation = centred.square().mean(-1, keepdim=True).sqrt() + self.epsilon
        return centred / deviation * self.norm.weight + self.norm.bias

class Tuned(Loaded):
    # The attributes are called like claims, or nearly so, and claim nothing.
    head_size, max_length, dtype = 64, 1, "f32"

    def scale(self):
        return self.heads**-0.5

    def forward(self, x, causal=False, valid=None, block=16):
        return super().forward(x, causal, valid)

class Misspelt(Free):
    def forward(self, x, is_casual=False):
        return super().forward(x, is_casual)

class MasksByHead(Loaded):
    # Masks of rank 4 alone are read.
    def forward(self, x, mask=None):
        B, L, E = x.shape
        q, k, v = self.projected(x)
        s = q @ k.transpose(-1, -2) / (E // self.heads) ** 0.5
        if mask is not None:
            shown = [mask[:, n if mask.shape[1] > 1 else 0] for n in range(self.heads)]
            s = s.masked_fill(~torch.stack(shown, 1), -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(B, L, E))

class Turned(Free):
    def forward(self, x, causal=False, valid=None):
        return super().forward(x, causal, valid).transpose(1, 2)
"""


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("more") / "layers.py"
    path.write_text(OWN + MORE)
    return path


def test_a_layer_without_biases_is_handed_none(torch_backend: Any, more: Path) -> None:
    layer = user_layer(torch_backend, more, "Unbiased")
    verdict = judged("values", PLAIN, layer)
    assert verdict.status == "unsupported"
    assert verdict.message.startswith("load_attention never reads query_bias")
    bare = "multi-head/causal/mha/f32/b2h4q7k7d3/e12.12.12.12/nobias/self"
    assert judged("values", bare, layer).status == "pass"


def test_a_layer_without_biases_is_asked_every_case_without_them(
    torch_backend: Any, more: Path
) -> None:
    layer, other = (user_layer(torch_backend, more, name) for name in ("Unbiased", "Loaded"))
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


def test_parameters_that_are_never_read_are_named(torch_backend: Any, more: Path) -> None:
    with pytest.raises(
        UsageError, match=r"layer Forgetful: load_attention never reads output_bias[.]"
    ):
        user_layer(torch_backend, more, "Forgetful")


def test_a_layer_that_folds_its_parameters_is_stale(torch_backend: Any, more: Path) -> None:
    right, folded = (user_layer(torch_backend, more, name) for name in ("Loaded", "Folded"))
    assert judged("values", PLAIN, folded).status == "pass"
    verdict = judged("stateless", PLAIN, folded)
    assert (verdict.status, verdict.kind) == ("fail", "stale")
    assert verdict.message.startswith("after parameters were changed in place")
    assert judged("stateless", PLAIN, right).status == "pass"


def test_dropout_of_a_layer_is_asked_where_it_takes_a_rate(torch_backend: Any, more: Path) -> None:
    case = "multi-head/none/mha/f32/b32h2q4k4d8/e16.16.16.16/self"
    assert judged("dropout", case, user_layer(torch_backend, more, "Dropping")).status == "pass"
    assert judged("dropout", case, user_layer(torch_backend, more, "Unscaled")).status == "fail"
    without = judged("dropout", case, user_layer(torch_backend, more, "Loaded"))
    assert without.status == "unsupported"


def test_knobs_and_attributes_of_a_layer_are_its_own(torch_backend: Any, more: Path) -> None:
    layer = user_layer(torch_backend, more, "Tuned")
    assert layer.remarks == ("never passed, so that the default is judged: block",)
    assert layer.declared.limits == Limits()
    assert judged("values", PLAIN, layer).status == "pass"


def test_a_misspelt_parameter_of_a_layer_is_named(torch_backend: Any, more: Path) -> None:
    with pytest.raises(
        UsageError, match=r"layer Misspelt has .*: is_casual; did you mean causal\?"
    ):
        user_layer(torch_backend, more, "Misspelt")


def test_a_layer_of_the_wrong_shape_fails_as_shape(torch_backend: Any, more: Path) -> None:
    verdict = judged("contract", PLAIN, user_layer(torch_backend, more, "Turned"))
    assert (verdict.status, verdict.kind) == ("fail", "shape")


def test_a_factory_that_asks_for_more_is_told_what_there_is(torch_backend: Any, more: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"depth\) does not fit; expected needs_more\(\*, query_width=..., key_width",
    ):
        user_layer(torch_backend, more, "needs_more")


def test_encoders_alone_are_told_of_their_network(torch_backend: Any, more: Path) -> None:
    told = arguments(FACTORY, draw(Case.parse(PLAIN)))
    assert not {"hidden_width", "norm_first", "activation"} & set(told)


NORMALISED = "multi-head/causal/mha/f32/b2h4q7k7d3/e12.12.12.12/qknorm/eps1e-06/self"


@pytest.mark.parametrize(
    ("name", "status"), [("Normalising", "pass"), ("Rms", "fail"), ("Loaded", "unsupported")]
)
def test_norms_of_queries_and_keys_are_asked_where_a_factory_takes_them(
    torch_backend: Any, more: Path, name: str, status: str
) -> None:
    layer = user_layer(torch_backend, more, name)
    assert judged("values", NORMALISED, layer).status == status
    assert judged("values", PLAIN, layer).status == "pass"


@pytest.mark.parametrize(("name", "status"), [("Norm", "pass"), ("Unrooted", "fail")])
def test_a_norm_of_a_person_is_judged_as_one(
    torch_backend: Any, more: Path, name: str, status: str
) -> None:
    """What adds epsilon beside the root, and not below it, is none."""
    norm = function_implementation(torch_backend, f"{more}:{name}", {}, "layer-norm")[0]
    assert judged("values", NORM, norm).status == status
    assert judged("contract", NORM, norm).status == "pass"


def test_a_layer_that_there_is_not_is_a_usage_error(
    more: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--backend=torch", f"--function={more}:Norm", "--like=layer-nrom"]
    assert main(["search", *asked]) == 2
    said = capsys.readouterr().err
    assert "unknown layer 'layer-nrom'; valid: " in said
    assert "layer-norm" in said


def test_masks_of_rank_4_alone_are_enough(torch_backend: Any, more: Path) -> None:
    verdict = judged(
        "election",
        "elect/multi-head/mask-polarity/f32",
        user_layer(torch_backend, more, "MasksByHead"),
    )
    assert (verdict.status, verdict.measured.observed) == ("pass", "attends"), verdict.message


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
    assert judged("values", PADDED, layer).status == "pass"
