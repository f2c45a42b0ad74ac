"""equinox on JAX: rows of `nn.MultiheadAttention` and `nn.LayerNorm`, mapped over samples, by `jax.jit`;
and `nn.RotaryPositionalEmbedding`. A call of a row builds the module from parameters among its arguments.

The rotary module rotates one sequence (L, D), in halves of whole heads; samples and heads are mapped. It
takes no positions but numbers rows from 0. So the call puts rows of zeros before a query at a later
position.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from attention_conformance.backends._jax.engine import JaxEngine
from attention_conformance.backends.declared import LAYER_FEATURES, Declared
from attention_conformance.backends.layer import SEED, FrameworkLayer, Layer
from attention_conformance.backends.masks import full, rank4
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD
from attention_conformance.suite.spec.operators.norms import LAYER_NORM
from attention_conformance.suite.spec.operators.rotary import FEATURES, ROTARY, Rotation

PARTS = ("query", "key", "value", "output")
"""The projections; their modules are called `query_proj` and so on."""

LEAVES = {"kernel": "weight", "bias": "bias"}
"""By canonical name of a projection's array: equinox's name."""

NO_BIAS = "equinox has no bias of the scores"


def multi_head(impl: FrameworkLayer, inputs: Inputs, **flags: Any) -> Any:
    """Returns an abstract `equinox.nn.MultiheadAttention`: no initializer runs."""
    import equinox

    s, w = inputs.sizes, inputs.widths
    settings = {
        "num_heads": s.H, "query_size": w.query, "key_size": w.key, "value_size": w.value,
        "output_size": w.output, "qk_size": s.D, "vo_size": s.Dv, "dropout_p": inputs.rate,
        "inference": not inputs.training,
        **{f"use_{n}_bias": "query_bias" in inputs.parameters for n in PARTS}, **flags,
    }  # fmt: skip
    key = impl.backend.jax.random.key(0)
    return equinox.filter_eval_shape(equinox.nn.MultiheadAttention, **settings, key=key)


def called(
    impl: FrameworkLayer,
    inputs: Inputs,
    arguments: dict[str, Any],
    *,
    jit: bool = True,
    switches_off: bool = False,
) -> PreparedCall:
    """Returns the call, through `jax.jit` or operation by operation. `switches_off`: the module has
    dropout, and an argument of the call switches it off."""
    import equinox

    array, jax = impl.backend.array, impl.backend.jax
    parameters = {n: array(a, inputs.dtype) for n, a in inputs.parameters.items()}
    getters = [attrgetter(impl.row.parameters[name]) for name in parameters]
    module = impl.make(inputs, **({"dropout_p": 0.5, "inference": False} if switches_off else {}))
    inference = True if switches_off else None

    def leaves(layer: Any) -> list[Any]:
        return [getter(layer) for getter in getters]

    def run(**arguments: Any) -> tuple[Any, None]:
        values = [arguments.pop(name) for name in parameters]
        # The weight of a linear layer is (out, in).
        weights = [
            a.reshape(leaf.shape[::-1]).T for a, leaf in zip(values, leaves(module), strict=True)
        ]
        layer = equinox.tree_at(leaves, module, weights) if weights else module
        key = jax.random.key(arguments.pop(SEED))

        def answer_sample(key: Any, values: dict[str, Any]) -> Any:
            query, *rest = (values.get(name) for name in ("query", "key", "value", "mask"))
            if impl.operator is LAYER_NORM:
                return jax.vmap(layer)(query)
            return layer(query, *rest, key=key, inference=inference)

        if inputs.squeezed:
            return answer_sample(key, arguments), None
        keys = jax.random.split(key, arguments["query"].shape[0])
        return jax.vmap(answer_sample)(keys, arguments), None

    arrays = {**arguments, **parameters, SEED: array(np.asarray(inputs.dropout_seed), None)}
    constants = (inputs.widths, inputs.sizes, inputs.case.options, switches_off, *arrays)
    call = PreparedCall(run, arrays, LAYER_OUTPUTS, constants=constants)
    return impl.backend.jitted(impl, call) if jit else call


def mask(impl: FrameworkLayer, inputs: Inputs, every_head: bool = False) -> dict[str, Any]:
    """Returns the argument `mask`: (B, Lq, Lk), or (B, H, Lq, Lk) if heads differ or `every_head` is
    True. B is left out if `inputs.squeezed`. Returns {} without a mask."""
    if inputs.dense_mask is None:
        return {}
    per_head = every_head or rank4(inputs.dense_mask).shape[1] != 1
    array = np.ascontiguousarray(full(inputs.dense_mask, inputs, per_head))
    return {"mask": impl.backend.array(array[0] if inputs.squeezed else array, None)}


def paths(impl: FrameworkLayer, inputs: Inputs) -> dict[str, PreparedCall]:
    """Returns calls without `jax.jit`, with a mask of every head, and with dropout that the call switches
    off."""
    calls = {"operation by operation": impl.call(inputs, jit=False)}
    if inputs.dense_mask is not None:
        calls["mask of every head"] = impl.call(inputs, {"every_head": True})
    if not inputs.rate:
        calls["inference in the call"] = impl.call(inputs, switches_off=True)
    return calls


EQUINOX_MULTI_HEAD = Layer(
    "multi-head",
    MULTI_HEAD,
    multi_head,
    called,
    {f"{n}_{ours}": f"{n}_proj.{theirs}" for n in PARTS for ours, theirs in LEAVES.items()},
    Declared(
        numerics="eager",
        features=LAYER_FEATURES,
        refusals={
            **dict.fromkeys(("bias", "bias-with-mask"), NO_BIAS),
            **dict.fromkeys(("weights", "average"), "equinox returns no weights"),
            "grouped-heads": "equinox has as many key/value heads as query heads",
            "native-causal": "equinox has no causal flag",
        },
        elections={
            "fully-masked-row": "uniform",
            "padded-sample": "uniform",
            "fully-masked-row-gradient": "values",
            "mask-polarity": "attends",
            "nan-in-masked-key": "blocked",
            "nan-in-masked-value": "leaks",
        },
        dropout="elements",
    ),
    arguments=mask,
    paths=paths,
)
"""The layer scales queries and computes the softmax in float32."""


def layer_norm(impl: FrameworkLayer, inputs: Inputs, **flags: Any) -> Any:
    """Returns an `equinox.nn.LayerNorm` of a token."""
    import equinox

    affine = "gain" in inputs.parameters
    settings = {"eps": inputs.epsilon, "use_weight": affine, "use_bias": affine, **flags}
    return equinox.nn.LayerNorm(inputs.widths.query, **settings)


EQUINOX_LAYER_NORM = Layer(
    "layer-norm",
    LAYER_NORM,
    layer_norm,
    called,
    {"gain": "weight", "offset": "bias"},
    Declared(numerics="exact", features=LAYER_FEATURES),
    operands={"query": "query"},
)


LONGEST = 2**17
"""The largest number of rows that a call rotates."""


class EquinoxRotary(Implementation):
    """The module with sine and cosine in the dtype `table`; "" is the query's dtype.

    In equinox all instances share one table of sine and cosine. It is emptied before each cell.
    """

    backend: JaxEngine

    operator = ROTARY
    declared = Declared(
        numerics="eager",
        features=FEATURES,
        refusals={
            "interleaved": "equinox rotates components half a head apart",
            "partial-rotation": "equinox rotates whole heads",
            "positions": "equinox has no argument for positions",
            "gathered-positions": "equinox numbers the rows of a sequence from 0",
            "rotary-scaling": "equinox has no scaled frequencies",
        },
    )

    def __init__(
        self, backend: JaxEngine, name: str, declared: Declared | None = None, table: str = ""
    ) -> None:
        super().__init__(backend, name, declared)
        self.table = table

    def refusal(self, case: Case) -> str | None:
        if case.option("offset") + case.sizes.Lq <= LONGEST:
            return None
        return "equinox numbers the rows of a sequence from 0: a large position needs as many rows"

    def prepare(self, inputs: Inputs) -> PreparedCall:
        import equinox

        jax, jnp, s = self.backend.jax, self.backend.numpy, inputs.sizes
        rotation = Rotation.of(inputs.case, s.D)
        first = int(np.min(inputs.arrays["position"], initial=LONGEST)) if s.Lq else 0
        if not np.array_equal(inputs.arrays["position"], first + np.arange(s.Lq)):
            raise ValueError("equinox numbers rows consecutively")
        dtype = jnp.dtype(self.table or inputs.dtype.long_name)

        def call(query: Any) -> Any:
            module = equinox.nn.RotaryPositionalEmbedding(s.D, theta=rotation.base, dtype=dtype)
            rotate = jax.vmap(jax.vmap(module))
            padded = jnp.pad(query, ((0, 0), (0, 0), (first, 0), (0, 0)))
            return rotate(padded)[:, :, first:]

        arguments = {"query": self.backend.operand(inputs.query, inputs, "bhld")}
        constants = (rotation, s.D, first, str(dtype))
        return PreparedCall(call, arguments, constants=constants)

    def begin_cell(self) -> None:
        import equinox

        # Otherwise the table's content would depend on earlier cells.
        equinox.clear_caches()


def rotaries(backend: JaxEngine) -> list[EquinoxRotary]:
    """Returns two implementations: with sine and cosine in the query's dtype, and in float32 as in JAX
    without float64."""
    # The answer, and each product of a gradient, is rounded once.
    single = EquinoxRotary.declared.but(
        numerics={"f32": "exact", "bf16": "eager", "f16": "eager"}, dtypes=("f32", "bf16", "f16")
    )
    return [
        EquinoxRotary(backend, "rotary"),
        EquinoxRotary(backend, "rotary-float32", single, table="float32"),
    ]
