"""Writing into pages: a copy, whose bound is zero.

Every slot of the pools is either the token that names it, or as it was. The gradient of a token is that
of its slot, or 0 if the token is skipped. A slot that is written passes no gradient to the old pool.
"""

from __future__ import annotations

import numpy as np

from attention_conformance.references.composition import Composition, Problem, Reference
from attention_conformance.references.rounding import Bounded
from attention_conformance.references.tape import Gradients, Node
from attention_conformance.suite.spec.operators.in_pages import flat_slots, pool_of


class Written(Node):
    """The pool `name` after tokens (N, Hkv, .) are written into slots, which are numbers
    page * S + slot; tokens with negative numbers are skipped."""

    def __init__(self, problem: Problem, name: str) -> None:
        cache, tokens = problem.exact_leaf(f"{name}_cache"), problem.exact_leaf(name)
        assert cache is not None
        assert tokens is not None
        super().__init__(problem.u, cache, tokens)
        self.cache, self.tokens, self.case = cache, tokens, problem.inputs.case
        slots = problem.inputs.arrays["slot_mapping"].astype(int)
        self.is_written = slots >= 0
        self.slots = slots[self.is_written]

    @property
    def output(self) -> Bounded:
        return self._put(self.cache.output, self.tokens.output[self.is_written])

    def gradients(self, cotangent: Bounded) -> Gradients:
        value, error = (np.zeros(self.tokens.shape, part.dtype) for part in cotangent.parts)
        for token_part, pool_part in zip((value, error), cotangent.parts, strict=True):
            token_part[self.is_written] = flat_slots(self.case, pool_part)[self.slots]
        zeros = Bounded.exact(np.zeros((len(self.slots), *self.tokens.shape[1:]), value.dtype))
        return self._put(cotangent, zeros), Bounded(value, error)

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        cache, tokens = tangents
        dtype = self.cache.output.value.dtype
        cache = cache or Bounded.exact(np.zeros(self.cache.shape, dtype))
        tokens = tokens or Bounded.exact(np.zeros(self.tokens.shape, dtype))
        return self._put(cache, tokens[self.is_written])

    def _put(self, cache: Bounded, tokens: Bounded) -> Bounded:
        """Returns a copy of the pool `cache` with `tokens` in the written slots."""
        parts = []
        for pool_part, token_part in zip(cache.parts, tokens.parts, strict=True):
            slots = flat_slots(self.case, pool_part).copy()
            slots[self.slots] = token_part
            parts.append(pool_of(self.case, slots))
        return Bounded(*parts)


def compose(problem: Problem) -> Composition:
    """Returns both pools after the write: keys as `output`, values as `value_output`."""
    return Composition(Written(problem, "key"), {"value_output": Written(problem, "value")})


reference = Reference(compose)
