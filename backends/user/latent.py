"""A user's latent attention as an implementation; see docs/operators.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.masks import masked_arrays
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.user.function import SCALES, UserCallable
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import And
from attention_conformance.suite.spec.operators.in_pages import by_position
from attention_conformance.suite.spec.operators.latent import (
    AXES,
    FEATURES,
    LATENT,
    SERVED,
    split_causal,
)

KEYWORDS: tuple[Parameter[Inputs], ...] = (
    Parameter("causal", ("causal",)),
    Parameter("mask", ("mask", "mask-array", "causal", "window", "padding")),
    *SCALES,
    Parameter("latent_scale", ("scales-of-tiles",)),
    Parameter("page_table", ("pages",)),
    Parameter("key_lengths"),
    Parameter("new_latent", ("new-latents",)),
    Parameter("new_key_rope", ("new-latents",)),
    Parameter("return_lse", ("lse",), lambda inputs: "lse" in inputs.outputs or None),
)
"""The keyword parameters of latent attention."""


class UserLatent(UserCallable):
    """A user's `function(query, query_rope, latent, key_rope, w_uk, w_uv, ...)`.

    The function returns (B, H, Lq, Dv), with `return_lse` also the log-sum-exp (B, H, Lq), and receives
    the `KEYWORDS` that it takes. A causal flag is aligned at the last key. With `latent_scale` (B, Lk,
    R / 128) the latents are codes. With `page_table` (B, T) latents, their scales and rotary keys are
    pools (P, S, .). With `new_latent` (B, Lq, R) and `new_key_rope` (B, Lq, E) the function stores these
    tokens in their slots, attends them, and returns both pools behind its other outputs.
    """

    operator = LATENT
    arrays = tuple(AXES)
    table = KEYWORDS
    features = FEATURES | SERVED | {"length-arrays"}

    def unsupported(self, case: AnyCase) -> str | None:
        """As for every function; a mask whose causal part is a flag needs no array for this part."""
        if isinstance(case, Case) and "causal" in self.binder.taken:
            flagged, rest = split_causal(case.mask, case.form, case.sizes)
            if flagged:
                left = And(rest) if len(rest) > 1 else rest[0] if rest else None
                case = replace(case, mask=left)
        return super().unsupported(case)

    def call_of(self, inputs: Inputs) -> PreparedCall:
        flagged, rest = split_causal(inputs.mask, inputs.form, inputs.sizes)
        flagged = flagged and "causal" in self.binder.taken
        shown = by_position(inputs)
        if shown is not inputs and (flagged or inputs.dense_mask is None):
            shown = replace(shown, mask_array=None)  # the lengths say as much
        arrays = masked_arrays(self.backend, shown, rest if flagged else None)
        keywords = self.binder.bind(inputs, inputs.needs) | ({"causal": True} if flagged else {})

        def call(mask: Any = None, **arrays: Any) -> Any:
            more = keywords if mask is None else keywords | {"mask": mask}
            more |= {name: x for name, x in arrays.items() if name in self.binder.taken}
            arrays["latent"] = arrays.get("latent_codes", arrays.get("latent"))
            return self.called(*(arrays[name] for name in self.arrays), **more)

        return PreparedCall(call, arrays, inputs.outputs, constants=tuple(sorted(keywords.items())))
