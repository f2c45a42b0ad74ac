"""Honest writing into pages in NumPy, one method a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.memory import written
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.faults.kernels.attention import Stated
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DType, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import slots_first
from attention_conformance.suite.spec.operators.paged_write import FEATURES, PAGED_WRITE


class PagedWriteKernel(Stated):
    """Tokens are put into copies of the pools, seen as flat slots."""

    operator = PAGED_WRITE
    features = FEATURES

    def prepare(self, inputs: Inputs) -> PreparedCall:
        case, fmt = inputs.case, inputs.dtype

        def call(**arrays: Rounded) -> tuple[Rounded, Rounded]:
            plain = {name: array.values for name, array in arrays.items()}
            pools = (self.pool(name, plain, case, fmt) for name in ("key", "value"))
            key, value = (Rounded(round_to(pool, fmt), fmt) for pool in pools)
            return key, value

        def vjp(cotangent: Rounded, wrt: Sequence[str], **arrays: Rounded) -> dict[str, Any]:
            plain = {name: array.values for name, array in arrays.items()}
            gradients = self.gradients(plain, cotangent.values, case)
            return {name: Rounded(round_to(gradients[name], fmt), fmt) for name in wrt}

        arguments = written(self.backend, inputs)
        return PreparedCall(
            call, arguments, inputs.outputs, vjp=vjp, constants=(case.option("layout"), fmt.name)
        )

    def pool(self, name: str, arrays: dict[str, np.ndarray], case: Case, fmt: DType) -> np.ndarray:
        """A pool after the write, in the layout of the case."""
        paged = self.paged(arrays[f"{name}_cache"], case)
        flat = paged.reshape(-1, *paged.shape[2:]).copy()
        slots = self.slots(arrays["slot_mapping"], paged.shape[1])
        self.put(flat, slots, self.tokens(arrays[name], fmt), paged.shape[1])
        return self.back(flat.reshape(paged.shape), arrays[f"{name}_cache"], case)

    def paged(self, cache: np.ndarray, case: Case) -> np.ndarray:
        """A pool as (P, S, Hkv, .)."""
        return slots_first(case, cache)

    def back(self, paged: np.ndarray, cache: np.ndarray, case: Case) -> np.ndarray:
        """The pool in the layout of `cache`."""
        return slots_first(case, paged)

    def slots(self, mapping: np.ndarray, size: int) -> np.ndarray:
        """The slots of the tokens in the flat pool; negative ones are skipped."""
        return mapping

    def tokens(self, tokens: np.ndarray, fmt: DType) -> np.ndarray:
        return tokens

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        """Write the tokens into the flat pool."""
        flat[slots[slots >= 0]] = tokens[slots >= 0]

    def gradients(
        self, arrays: dict[str, np.ndarray], cotangent: np.ndarray, case: Case
    ) -> dict[str, np.ndarray]:
        """Gradients of the keys and of their pool."""
        paged = self.paged(cotangent, case)
        flat, slots = paged.reshape(-1, *paged.shape[2:]).copy(), arrays["slot_mapping"]
        key = np.zeros(arrays["key"].shape)
        key[slots >= 0] = flat[slots[slots >= 0]]
        flat[slots[slots >= 0]] = 0.0
        return {"key": key, "key_cache": self.back(flat.reshape(paged.shape), cotangent, case)}
