"""Right writing into pages in NumPy, one method a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded, rounded_to
from attention_conformance.backends.operators import OperatorFunction
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.deviations.kernels.attention import DeclaredKernel
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import flat_slots, pool_of
from attention_conformance.suite.spec.operators.paged_write import FEATURES, PAGED_WRITE


class PagedWriteKernel(DeclaredKernel, OperatorFunction):
    """Tokens are written into copies of the pools, viewed as P * S slots."""

    operator = PAGED_WRITE
    features = FEATURES

    def prepare(self, inputs: Inputs) -> PreparedCall:
        case, fmt = inputs.case, inputs.dtype

        def vjp(cotangent: Rounded, wrt: Sequence[str], **arrays: Rounded) -> dict[str, Any]:
            values = {name: array.values for name, array in arrays.items()}
            gradients = self.gradients(values, cotangent.values, case)
            return {name: rounded_to(gradients[name], fmt) for name in wrt}

        constants = (case.option("layout"), fmt.name)
        return replace(super().prepare(inputs), vjp=vjp, constants=constants)

    def compute(self, x: dict[str, Rounded], inputs: Inputs) -> Any:
        values = {name: array.values for name, array in x.items()}
        pools = (self.pool(name, values, inputs.case) for name in ("key", "value"))
        return tuple(Rounded(pool, inputs.dtype) for pool in pools)

    def pool(self, name: str, arrays: dict[str, np.ndarray], case: Case) -> np.ndarray:
        """Returns the pool of keys or values (`name`) after the write, in the layout of the case."""
        cache = arrays[f"{name}_cache"]
        flat, size = self.flat_pool(cache, case).copy(), case.option("page_size")
        self.put(flat, self.slots(arrays["slot_mapping"]), arrays[name], size)
        return self.unflattened(flat, cache, case)

    def flat_pool(self, cache: np.ndarray, case: Case) -> np.ndarray:
        """Returns a pool as slots, (P * S, Hkv, .)."""
        return flat_slots(case, cache)

    def unflattened(self, flat: np.ndarray, cache: np.ndarray, case: Case) -> np.ndarray:
        """Returns the pool with these slots `flat`, in the layout of `cache`."""
        return pool_of(case, flat)

    def slots(self, mapping: np.ndarray) -> np.ndarray:
        """Returns the slot of each token in the flat pool; tokens with a negative slot are skipped."""
        return mapping

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        """Writes the tokens into the flat pool, in place. A page has `size` slots."""
        flat[slots[slots >= 0]] = tokens[slots >= 0]

    def gradients(
        self, arrays: dict[str, np.ndarray], cotangent: np.ndarray, case: Case
    ) -> dict[str, np.ndarray]:
        """Returns the gradients of the keys and of their pool before the write, by name."""
        flat, slots = flat_slots(case, cotangent).copy(), arrays["slot_mapping"]
        key = np.zeros(arrays["key"].shape)
        key[slots >= 0] = flat[slots[slots >= 0]]
        flat[slots[slots >= 0]] = 0.0
        return {"key": key, "key_cache": pool_of(case, flat)}
