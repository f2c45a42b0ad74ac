"""Shared code of Flax's attention modules: names, arguments, and ways to pass a mask."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._jax.engine import JaxEngine
from attention_conformance.backends.declared import LAYER_FEATURES, Declared
from attention_conformance.backends.masks import LayerMasks, causal_alone, full, rank4
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD

PARTS = {"query": "query", "key": "key", "value": "value", "out": "output"}
"""Canonical names of projections by Flax's names. Kernels and biases have the canonical shapes."""

ARGUMENTS = {"query": "inputs_q", "key": "inputs_k", "value": "inputs_v"}
"""The modules' names of query, key and value."""

EPSILON = 1e-6
"""The default epsilon of Flax's layer norms; attention modules cannot set another."""

NOTHING = 2.0**-60
"""A dropout rate that drops nothing, since 1 - rate rounds to 1."""

SEED = "dropout_seed"
"""The argument with the seed of dropout."""


def by_parts(parameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Kernels and biases by Flax's names of projections, gains by its names of norms."""
    norms = {
        f"{part}_ln": {"scale": parameters[f"{part}_gain"]}
        for part in ("query", "key")
        if f"{part}_gain" in parameters
    }
    return norms | {
        ours: {
            what: parameters[f"{name}_{what}"]
            for what in ("kernel", "bias")
            if f"{name}_{what}" in parameters
        }
        for ours, name in PARTS.items()
    }


class FlaxLayer(Implementation):
    """A Flax attention module, which the call builds from parameters among its arguments.

    A bias is passed through `attention_fn`, as documented.
    """

    backend: JaxEngine

    operator = MULTI_HEAD
    declared = Declared(
        features=LAYER_FEATURES,
        refusals={
            "average": "Flax sows the weights of every head",
            "value-size": "Flax has one qkv_features",
        },
        elections={
            "fully-masked-row": "uniform",
            "padded-sample": "uniform",
            "minus-inf-row": "nan",
            "lowest-row": "uniform",
            "fully-masked-row-gradient": "values",
            "mask-polarity": "attends",
            "nan-in-masked-key": "blocked",
            "nan-in-masked-value": "leaks",
        },
    ).taking("qk-norm")
    causal_flag = False
    calls_native = False

    @property
    def later(self) -> frozenset[str]:
        return frozenset(self.backend.stepwise_dtypes) if self.calls_native else super().later

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, Case) and case.option("qk_norm") and case.option("epsilon") != EPSILON:
            return f"Flax's norms of queries and keys add {EPSILON:g} to a variance"
        return super().unsupported(case)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.jitted(self.call(inputs), inputs)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        flags = self.mask_paths(inputs) | self.input_paths(inputs) | self.flag_paths(inputs)
        if not inputs.squeezed and inputs.bias is None:
            flags["two axes of batches"] = {"axes": 2}
        if inputs.dtype.is_half:
            wide = self.backend.numpy.dtype("float32")
            flags["parameters in float32"] = {"wide_parameters": True, "param_dtype": wide}
        return {
            name: self.jitted(self.call(inputs, **changes), inputs)
            for name, changes in flags.items()
        }

    def jitted(self, plain: PreparedCall, inputs: Inputs) -> PreparedCall:
        """The call through `jax.jit`, the default."""
        if self.calls_native:
            return self.backend.jitted_native(self, plain, inputs.dtype)
        return self.backend.jitted(self, plain)

    def call(
        self,
        inputs: Inputs,
        masks: str = "heads",
        flag: bool = True,
        inputs_given: int = 3,
        axes: int = 1,
        wide_parameters: bool = False,
        **flags: Any,
    ) -> PreparedCall:
        """A call of the layer with flags, operation by operation.

        - `masks`: "heads" (B, 1 or H, Lq, Lk), as from `make_attention_mask`; "full" (B, H, Lq, Lk);
          "broadcast", with sizes of 1; "float32"; "helpers", made by Flax
        - `flag`: whether the causal flag may be used
        - `inputs_given`: how many of query, key and value are passed
        - `axes`: the number of batch axes
        - `wide_parameters`: parameters are float32, as in most models
        - `flags`: those of the module and its call
        """
        backend = self.backend
        arrays = sequences(backend, inputs)
        arguments = {ARGUMENTS[name]: arrays[name] for name in list(arrays)[:inputs_given]}
        split = LayerMasks.of(inputs, causal=self.causal_flag and flag, lengths=False)
        if split.causal:
            arguments["is_causal"] = True
        if masks == "helpers":
            arguments["mask"] = self.helped(inputs)
        elif split.rest is not None:
            arguments["mask"] = backend.array(_mask(split.rest, inputs, masks), None)
        stored = DTYPES["f32"] if wide_parameters else inputs.dtype
        parameters = {n: backend.array(a, stored) for n, a in inputs.parameters.items()}
        arguments |= parameters
        if inputs.bias is not None:
            bias = rank4(inputs.bias)
            arguments["bias"] = backend.array(bias[0] if inputs.squeezed else bias, inputs.dtype)
        arguments[SEED] = backend.array(np.asarray(inputs.dropout_seed), None)
        settings = self.settings(inputs) | flags
        module = self.module(settings, inputs)

        def run(**arguments: Any) -> tuple[Any, Any]:
            own = {name: arguments.pop(name) for name in parameters}
            seed, bias = arguments.pop(SEED), arguments.pop("bias", None)
            if axes == 1:
                return module(own, bias, seed, arguments)
            several = {n: a if n == "is_causal" else a[None] for n, a in arguments.items()}
            output, weights = module(own, bias, seed, several)
            return output[0], None if weights is None else weights[0]

        constants = (settings, axes, wide_parameters, inputs.returned, inputs.training)
        return PreparedCall(run, arguments, LAYER_OUTPUTS, operands=ARGUMENTS, constants=constants)

    def settings(self, inputs: Inputs) -> dict[str, Any]:
        """Constructor arguments that all modules have."""
        s, widths = inputs.sizes, inputs.widths
        dtype = self.backend.numpy.dtype(inputs.dtype.long_name)
        # As in users' code: default values are not passed.
        said = {
            "qkv_features": (s.H * s.D, widths.query),
            "out_features": (widths.output, widths.query),
            "use_bias": ("query_bias" in inputs.parameters, True),
            "param_dtype": (dtype, self.backend.numpy.dtype("float32")),
            "dropout_rate": (inputs.rate, 0.0),
            "normalize_qk": ("query_gain" in inputs.parameters, False),
        }
        told = {name: value for name, (value, default) in said.items() if value != default}
        return {"num_heads": s.H, "dtype": dtype, **told}

    @abstractmethod
    def module(
        self, settings: dict[str, Any], inputs: Inputs
    ) -> Callable[[Mapping[str, Any], Any, Any, dict[str, Any]], tuple[Any, Any]]:
        """A function that builds the module, calls it, and returns (output, weights).

        Its arguments are parameters, bias or None, the seed of dropout, and the arguments of the call.
        `settings` include the flags.
        """

    def helped(self, inputs: Inputs) -> Any:
        """The mask from Flax's own helper functions."""
        import flax.linen as linen

        s = inputs.sizes
        split = LayerMasks.of(inputs)
        lead = () if inputs.squeezed else (s.B,)
        ones = self.backend.array(np.ones((*lead, s.Lq), np.float32), None)
        causal = linen.make_causal_mask(ones) if split.causal else None
        padding = None
        if split.valid is not None:
            valid = split.valid[0] if inputs.squeezed else split.valid
            padding = linen.make_attention_mask(ones, self.backend.array(valid, None))
        return linen.combine_masks(causal, padding)

    def mask_paths(self, inputs: Inputs) -> dict[str, dict[str, Any]]:
        """Ways to pass the same mask."""
        flags: dict[str, dict[str, Any]] = {}
        if inputs.dense_mask is None:
            return flags
        split = LayerMasks.of(inputs)
        if split.causal and self.causal_flag and inputs.mask_array is None:
            flags["causal as a mask"] = {"flag": False}
        if LayerMasks.of(inputs, causal=self.causal_flag, lengths=False).rest is not None:
            flags["mask as it broadcasts"] = {"masks": "broadcast"}
            flags["mask written out"] = {"masks": "full"}
            flags["mask in float32"] = {"masks": "float32"}
        if split.rest is None and (inputs.sizes.Lq == inputs.sizes.Lk or not split.causal):
            flags["make_attention_mask, make_causal_mask"] = {"masks": "helpers", "flag": False}
        return flags

    def input_paths(self, inputs: Inputs) -> dict[str, dict[str, Any]]:
        """Ways to pass one tensor as query, key and value."""
        if not inputs.self_attention:
            return {}
        return {"inputs_q alone": {"inputs_given": 1}, "no inputs_v": {"inputs_given": 2}}

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        plain = self.call(inputs)
        own, query = plain.arguments, np.asarray(plain.arguments["inputs_q"])
        one = {n: a for n, a in own.items() if n != "inputs_k"}
        # eval_shape computes nothing.
        shape_of = partial(self.backend.jax.eval_shape, plain.function)
        heads = self.call(inputs, num_heads=inputs.sizes.H + 1)
        rows = self.call(inputs, rows_at_once=2)
        return {
            "inputs_v without inputs_k": lambda: shape_of(**one),
            "queries of another width": lambda: shape_of(
                **{**own, "inputs_q": query[..., inputs.sizes.H :]}
            ),
            "heads that do not divide the width": lambda: heads.function(**own),
            "two rows for a cache of one at a time": lambda: self.backend.jax.eval_shape(
                rows.function, **own
            ),
        }

    @abstractmethod
    def flag_paths(self, inputs: Inputs) -> dict[str, dict[str, Any]]:
        """The layer's other flags."""


def _mask(mask: np.ndarray, inputs: Inputs, how: str) -> np.ndarray:
    mask, s = rank4(mask), inputs.sizes
    if how == "full":
        mask = full(mask, inputs)
    elif how != "broadcast":
        mask = np.broadcast_to(mask, (s.B, mask.shape[1], s.Lq, s.Lk))
    mask = mask.astype(np.float32) if how == "float32" else mask
    return mask[0] if inputs.squeezed else mask


def one_by_one(step: Callable[[Any], Any], arguments: Mapping[str, Any], count: int) -> Any:
    """The answers of a decoding layer that gets `count` rows at a time; only 1 is allowed."""
    import jax

    rows = arguments["inputs_q"]
    outputs = [step(rows[:, n : n + count]) for n in range(0, rows.shape[1], count)]
    return jax.numpy.concatenate(outputs, axis=1)


def decodes(inputs: Inputs) -> bool:
    """Whether decoding row by row gives the same answer: self-attention with only a causal mask."""
    whole = not (inputs.squeezed or inputs.training or inputs.bias is not None)
    return causal_alone(inputs) and whole and inputs.self_attention and inputs.returned == "none"


def biased(function: Callable[..., Any], bias: Any) -> dict[str, Any]:
    """The setting that adds a bias to the scores; empty without a bias."""
    return {} if bias is None else {"attention_fn": partial(function, bias=bias)}
