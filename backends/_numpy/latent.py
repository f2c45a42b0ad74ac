"""Latent attention by definition: plain attention over keys and values that are formed exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends._numpy.attention import definition, given
from attention_conformance.backends._numpy.engine import Rounded
from attention_conformance.backends.declared import Declared, DeclaredRounding
from attention_conformance.backends.in_pages import from_numpy_pages, with_new_tokens
from attention_conformance.backends.masks import masked_arrays
from attention_conformance.backends.prepared import PreparedCall, attention_call
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import masked, stores
from attention_conformance.suite.spec.operators.latent import FEATURES, LATENT, SERVED, plain


class ProjectedKeys(Implementation):
    """The reference of plain attention over the keys and values, rounded once to the case's dtype."""

    name = "projected-keys"
    operator = LATENT
    declared = Declared(
        numerics="exact",
        features=FEATURES | SERVED | {"length-arrays"},
        refusals={"gradient": "NumPy differentiates nothing"},
        elections={
            "fully-masked-row": "zeros",
            "lse-of-empty-row": "minus-inf",
            "nan-behind-last-key": "blocked",
        },
        rounding=DeclaredRounding(absorbs=dict.fromkeys(DTYPES, False)),
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        fmt = inputs.dtype
        precision = np.longdouble if fmt is DTYPES["f64"] else np.float64
        attended = inputs.replace(writes=False)
        settings = {"scale": inputs.effective_scale, "fmt": fmt, **inputs.features}

        def call(mask: Rounded | None = None, **arrays: Rounded) -> Any:
            x = with_new_tokens({name: array.values for name, array in arrays.items()}, inputs)
            query, key, value = plain(from_numpy_pages(x, inputs), precision)
            shown = None if mask is None else mask.values
            with np.errstate(all="ignore"):
                answer = given(definition(query, key, value, mask=shown, **settings), attended)
            pools = [Rounded(x[name], fmt) for name in stores(inputs.case)]
            own = answer if isinstance(answer, tuple) else (answer,)
            return (*own, *pools) if pools else answer

        return attention_call(call, masked_arrays(self.backend, masked(inputs)), inputs)
