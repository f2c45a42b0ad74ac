"""Textbook paged attention: sample after sample, and every query over the pages of its sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.textbook.packed import TextbookPacked
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import segments
from attention_conformance.suite.spec.operators.paged import FEATURES, PAGED, allowed, page_counts


class TextbookPaged(TextbookPacked):
    """Paged attention in operations that all frameworks have. Pages are taken by the table's numbers."""

    operator = PAGED
    declared = Declared(features=FEATURES, bitwise=("rerun", "pages"))

    def masks(self, inputs: Inputs) -> dict[str, Any]:
        table = inputs.arrays["page_table"].astype(np.int32)
        hidden = {name: self.backend.array(x, None) for name, x in self.hidden(inputs).items()}
        return {"page_table": self.backend.array(table, None), **hidden}

    def hidden(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """Boolean arrays by name, True hides."""
        raise NotImplementedError

    def slots_first(self, pool: Any, inputs: Inputs) -> Any:
        """A pool as (P, S, Hkv, .)."""
        if inputs.case.option("layout") == "hnd":
            pool = self.ops.transpose(pool, (0, 2, 1, 3))
        return pool


class PagedSamples(TextbookPaged):
    """Plain attention over one sample after the other, whose pages are concatenated and cut to length."""

    name = "textbook-paged-samples"
    declared = TextbookPaged.declared.electing({"nan-behind-last-key": "blocked"})

    def hidden(self, inputs: Inputs) -> dict[str, np.ndarray]:
        if inputs.case.option("alignment") == "all":
            return {}
        of = enumerate(segments(inputs.case))
        lengths = {n: (rows.stop - rows.start, keys.stop - keys.start) for n, (rows, keys) in of}
        return {f"hidden_{n}": ~allowed(inputs.case, *both)[None] for n, both in lengths.items()}

    def compute(
        self, query: Any, key: Any, value: Any, rest: dict[str, Any], inputs: Inputs
    ) -> Any:
        ops, case, answers = self.ops, inputs.case, []
        counts, _ = page_counts(case)
        pools = [self.slots_first(pool, inputs) for pool in (key, value)]
        for n, (rows, keys) in enumerate(segments(case)):
            if rows.stop == rows.start:
                continue
            pages = rest["page_table"][n, : int(counts[n])]
            length = keys.stop - keys.start
            taken = (ops.take(pool, pages) for pool in pools)
            k, v = (ops.reshape(x, (-1, *x.shape[2:]))[:length] for x in taken)
            hidden = rest.get(f"hidden_{n}")
            answers.append(self.attend(query[rows], k, v, hidden, inputs))
        return ops.concat(answers, 0)


class PagedRows(TextbookPaged):
    """Every query attends all slots of its sample's table, and those behind the last key are hidden."""

    name = "textbook-paged"
    declared = TextbookPaged.declared.electing({"nan-behind-last-key": "leaks"})

    def hidden(self, inputs: Inputs) -> dict[str, np.ndarray]:
        n, parts = inputs.letters, list(segments(inputs.case))
        hidden = np.ones((inputs.sizes.Lq, 1, 1, n["t"] * n["s"]), bool)
        for rows, keys in parts:
            count, of = rows.stop - rows.start, keys.stop - keys.start
            hidden[rows, 0, 0, :of] = ~allowed(inputs.case, count, of)
        return {"hidden": hidden}

    def masks(self, inputs: Inputs) -> dict[str, Any]:
        samples = np.repeat(np.arange(inputs.sizes.B), inputs.case.option("segments")[0])
        return {
            **super().masks(inputs),
            "sample": self.backend.array(samples.astype(np.int32), None),
        }

    def compute(
        self, query: Any, key: Any, value: Any, rest: dict[str, Any], inputs: Inputs
    ) -> Any:
        ops, s = self.ops, inputs.sizes
        pages = ops.take(rest["page_table"], rest["sample"])  # (Lq, T)
        pools = (self.slots_first(pool, inputs) for pool in (key, value))
        taken = (ops.reshape(ops.take(x, pages), (s.Lq, -1, *x.shape[2:])) for x in pools)
        k, v = (ops.transpose(x, (0, 2, 1, 3)) for x in taken)  # (Lq, Hkv, T S, .)
        q = ops.reshape(query, (s.Lq, s.Hkv, s.group, s.D))
        answer = self.weighted(q, k, v, rest["hidden"], inputs)
        return ops.reshape(answer, (s.Lq, s.H, s.Dv))
