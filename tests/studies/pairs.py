"""The page docs/data/pairs.md: which tuples of values of axes stand together in a case, by operator.

python -m tests.studies.pairs       writes the page anew
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod
from pathlib import Path

import pandas as pd

from attention_conformance.suite.spec import catalogue
from attention_conformance.suite.spec.covering import Covering, feasible, pairs_of
from attention_conformance.suite.spec.operators import OPERATORS, sdpa_paths

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data" / "pairs.md"

TEXT = """\
# Pairs of values

After reading this page you know which values of axes meet in the cases of an operator at `standard`.

    python -m tests.studies.pairs

An axis is one property of a case: its sizes, its mask, its dtype, a feature, the arrangement of its
pages. A value of the axis `sizes` joins numbers of heads, lengths and head sizes, so a pair with it
is a tuple of all of them. Not every pair makes sense: a mask in pages, for example, counts from the
last key. `possible` are the pairs that some valid case has; a covering array has all of them.
`full` draws triples in the same way, but for the classes of sizes, which stand in threes at all levels.
A value of `sizes` stands for its lengths and head size together. `axes` has the number of values of each
axis. The column `triples` counts those that stand in a row, of all products of three values, whether they
make sense or not. Many or wide heads stand with few tokens, and the heads of models with pages that do
not hold all keys of a sample.

"""

TRIPLES_TEXT = """\

Kernels choose their path by some three axes, so these triples all stand in a case at `standard`:
biases with and without a causal flag at each of the sizes, which join head size and lengths; page sizes
with layouts and heads; head sizes with memory orders and directions. Other features meet every one of
the sizes in pairs.

"""

SIZES_TEXT = """\

The sizes of models that the cases of each operator have at `standard`: of values, and behind the bar of
gradients if these have fewer.

- Sizes of heads stand in joined `sizes`: with a few lengths each, and in float32, float16 and bfloat16.
- A projection of layers costs the square of its width: layers have few wide heads.
- Models with 128 heads have latents.
- Wide heads stand beside few tokens, but for the caches of 300 tokens in `cached_cases.LONG`.
- Gradients of pages are those of the keys that are gathered from them: few sizes of pages are asked.

"""

SIZES_RUN = {
    "D": (64, 80, 96, 128, 192, 256),
    "H": (8, 16, 32, 128),
    "Hkv": (1, 2, 4, 8),
    "page_size": (16, 32, 64, 128, 256),
}
"""The sizes that people run, by the name of the fact of a case."""


DIRECTIONS = ("D", "axis_order", "direction")
"""The axes that are shown of the array of classes, which joins all of its sizes, masks, memory orders and
directions in threes."""


def arrays() -> Iterator[tuple[str, str, Covering]]:
    """The covering arrays of values and of gradients: operator, what is drawn, and array."""
    for operator in OPERATORS.values():
        for pool in ("cases", "gradients"):
            asks = getattr(operator.asks, pool)
            found = [one for ask in asks for one in ask.ids if type(one) is Covering]
            yield from ((operator.name, pool, array) for array in found)
    yield "sdpa", "classes of sizes, with masks", sdpa_paths.BY_MASK


def covered(array: Covering, strength: int) -> tuple[int, int]:
    """How many tuples of values of so many axes stand together in a row; and how many there are of axes
    and values, whether they make sense or not."""
    targets = list(combinations(array.axes, strength))
    met = {tuple((n, row[n]) for n in target) for row in array.rows for target in targets}
    return len(met), sum(prod(len(array.axes[n]) for n in target) for target in targets)


def possible(array: Covering) -> int:
    """How many pairs some valid case has."""
    return len(feasible(array.axes, array.valid, pairs_of(array.axes)))


def triples() -> Iterator[dict[str, object]]:
    """The triples of axes that all levels join: how many stand in a row, and how many some case has."""
    for name, pool, array in arrays():
        by_class = array is sdpa_paths.BY_MASK
        for target in array.targets:
            if len(target) == 3 and (not by_class or target == DIRECTIONS):
                met = {tuple(row[n] for n in target) for row in array.rows}
                yield {
                    "operator": name,
                    "drawn": "values" if pool == "cases" else pool,
                    "axes": ", ".join(target),
                    "triples": len(met),
                    "possible": len(feasible(array.axes, array.valid, [target])),
                }


def sizes_run() -> Iterator[dict[str, str]]:
    """The sizes of `SIZES_RUN` in the cases of each operator at standard, for values and gradients."""
    pools = [catalogue.cases("standard"), catalogue.gradient_cases("standard")]
    for operator in OPERATORS.values():
        facts = [[case.facts for case in pool if case.operator is operator] for pool in pools]
        row = {"operator": operator.name}
        for name, sizes in SIZES_RUN.items():
            met = [{fact.get(name) for fact in facts_of_pool} for facts_of_pool in facts]
            values, gradients = (" ".join(str(n) for n in sizes if n in one) for one in met)
            row[name] = values if gradients in (values, "") else f"{values} \\| {gradients}"
        yield row


def page() -> str:
    rows = [
        {
            "operator": name,
            "drawn": "values" if pool == "cases" else pool,
            "axes": ", ".join(f"{axis} {len(values)}" for axis, values in array.axes.items()),
            "cases": len(array.rows),
            "pairs": covered(array, 2)[0],
            "possible": possible(array),
            "triples": "{} of {}".format(*covered(array, 3)),
        }
        for name, pool, array in arrays()
    ]
    parts = ((TEXT, rows), (TRIPLES_TEXT, triples()), (SIZES_TEXT, sizes_run()))
    tables = (text + pd.DataFrame(part).to_markdown(index=False) for text, part in parts)
    return "\n".join(tables) + "\n"


def main(words: Sequence[str] | None = None) -> None:
    """Write the page."""
    argparse.ArgumentParser("python -m tests.studies.pairs").parse_args(words)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
