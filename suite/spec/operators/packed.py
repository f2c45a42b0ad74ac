"""Packed attention: sequences of different lengths, concatenated in one array without padding.

    query (Lq, H, D), key (Lk, Hkv, D), value (Lk, Hkv, Dv), output (Lq, H, Dv)
    query_lengths, key_lengths (B,)      lengths of the B segments, with sums Lq and Lk

The queries of a segment attend only keys of this segment. Interfaces take cumulative lengths from 0 on,
(B + 1,), `cu_seqlens` (Dao, FlashAttention-2, 2023, "varlen").

Segments may be empty. Queries of a segment without keys are fully masked rows; only an election asks
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.covering import Row
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import (
    SCALE,
    ArrayKinds,
    Asks,
    Axes,
    Operator,
    Option,
    Packing,
    Questions,
    choice,
)
from attention_conformance.suite.spec.operators.drawn import covering_of, is_wide_in_float64
from attention_conformance.suite.spec.recipes import DRAWS
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import OPERANDS

WORDS = {
    "causal-bottom-right": "a causal mask of packed segments with more keys than queries, aligned at the "
    "last query",
    "cross-lengths": "packed segments with other numbers of queries than of keys",
    "length-arrays": "lengths of segments or samples as an array whose values are read",
    "empty-segments": "packed segments without a query, or without a token",
}
"""Words for required features of packed segments."""

FEATURES = frozenset(
    {
        *(WORDS.keys() - {"length-arrays"}), "causal", "scale", "grouped-heads", "value-size",
        "inner-stride", "gradient", "other-shapes",
    }
)  # fmt: skip
"""Features of packed attention."""

LENGTHS = r"seg(\d+(?:\.\d+)*(?:x\d+(?:\.\d+)*)?)"
"""Lengths of segments in an id: "seg5.7.12" for queries and keys, "seg2.0.3x9.4.7" for queries x keys.
"""

ALIGNMENTS = ("all", "causal", "causalbr")
"""Which keys of its segment a query attends.

- all: all keys.
- causal: keys up to its own position (top-left).
- causalbr: as causal, with the last query aligned to the last key. Not used if both have equal numbers.
"""

Lengths = tuple[tuple[int, ...], tuple[int, ...]]


@cache
def parse_lengths(text: str) -> Lengths:
    """Returns the numbers of queries and of keys of each segment, from "5.7.12" or "2.0.3x9.4.7"."""
    query_text, _, key_text = text.partition("x")
    queries, keys = (
        tuple(int(n) for n in part.split(".")) for part in (query_text, key_text or query_text)
    )
    return queries, keys


def token_of_lengths(pair: Lengths) -> str:
    """Returns the token in an id for these numbers of queries and of keys."""
    queries, keys = (".".join(map(str, part)) for part in pair)
    return f"seg{queries}" if queries == keys else f"seg{queries}x{keys}"


def sizes_of(row: Row) -> str:
    """Returns heads, sizes and segments as tokens of an id, such as "gqa2/b2h4q3k9d8/seg1.2x5.4".
    The axes of the row are "heads" ("gqa2/h4/d8") and "lengths" ("1.2x5.4")."""
    kind, heads, width = str(row["heads"]).split("/")
    queries, keys = parse_lengths(str(row["lengths"]))
    sizes = f"b{len(queries)}{heads}q{sum(queries)}k{sum(keys)}{width}"
    return f"{kind}/{sizes}/{token_of_lengths((queries, keys))}"


def segments(case: Case) -> Iterator[tuple[slice, slice]]:
    """Yields the query slice and the key slice of each segment."""
    edges = (pairwise(cumulative_lengths(part).tolist()) for part in case.option("segments"))
    return ((slice(*rows), slice(*keys)) for rows, keys in zip(*edges, strict=True))


def cumulative_lengths(part: Collection[int] | np.ndarray) -> np.ndarray:
    """Returns cumulative lengths from 0 on, int64 (B + 1,): the start of each segment, and the last
    end."""
    return np.concatenate([[0], np.cumsum(np.asarray(part, np.int64))]).astype(np.int64)


def allowed_pairs(queries: int, keys: int, alignment: str) -> np.ndarray:
    """Returns the mask of one segment, boolean (queries, keys), True attends. `alignment`: one of
    `ALIGNMENTS`."""
    if alignment == "all":
        return np.ones((queries, keys), bool)
    return np.tri(queries, keys, keys - queries if alignment == "causalbr" else 0, dtype=bool)


def parts(case: Case) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Yields the query slice, the key slice and the mask (queries, keys) of each segment; True
    attends."""
    alignment = case.option("alignment")
    for rows, keys in segments(case):
        yield rows, keys, allowed_pairs(rows.stop - rows.start, keys.stop - keys.start, alignment)


def hidden_pairs(case: Case) -> np.ndarray:
    """Returns the hidden pairs, boolean (Lq, Lk): pairs of different segments, and pairs that the
    alignment hides."""
    hidden = np.ones((case.sizes.Lq, case.sizes.Lk), bool)
    for rows, keys, attended in parts(case):
        hidden[rows, keys] = ~attended
    return hidden


def with_lengths(case: Case, queries: Sequence[int], keys: Sequence[int], **options: Any) -> Case:
    """Returns the case with these numbers of queries and of keys of each segment, and with these
    options."""
    sizes = replace(case.sizes, B=len(queries), Lq=sum(queries), Lk=sum(keys))
    new_options = dict(case.options, segments=(tuple(queries), tuple(keys)), **options)
    return replace(case, sizes=sizes, options=tuple(new_options.items()))


def axes(case: Case) -> Axes:
    return {
        "query": "qhd", "key": "kgd", "value": "kgv", "query_lengths": "b", "key_lengths": "b"
    }  # fmt: skip


def packed_operands(case: Case, rng: np.random.Generator) -> list[np.ndarray]:
    """Returns query (Lq, H, D), key (Lk, Hkv, D) and value (Lk, Hkv, Dv) of the case's recipe."""
    one_sample = replace(case.sizes, B=1)
    drawn = DRAWS[case.recipe](rng, one_sample, case.dtype)
    return [np.ascontiguousarray(array[0].transpose(1, 0, 2)) for array in drawn]


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    arrays = dict(zip(OPERANDS, packed_operands(case, rng), strict=True))
    queries, keys = (np.asarray(part, np.float64) for part in case.option("segments"))
    return {**arrays, "query_lengths": queries, "key_lengths": keys}


def choose(inputs: Inputs, order: Sequence[int] | np.ndarray) -> Inputs:
    """Returns the inputs with only the segments `order`, in this order."""
    slices = list(segments(inputs.case))
    queries, keys = ([part[n] for n in order] for part in inputs.case.option("segments"))
    arrays = {
        "query": np.concatenate([inputs.query[slices[n][0]] for n in order]),
        "key": np.concatenate([inputs.key[slices[n][1]] for n in order]),
        "value": np.concatenate([inputs.value[slices[n][1]] for n in order]),
        "query_lengths": np.asarray(queries, np.float64),
        "key_lengths": np.asarray(keys, np.float64),
    }
    case = with_lengths(inputs.case, queries, keys)
    return replace(inputs, case=case, arrays=arrays, sizes=case.sizes)


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> Mapping[str, bool]:
    queries, keys = case.option("segments")
    return {
        "scale": case.option("scale") is not None,
        "causal": case.option("alignment") != "all",
        "causal-bottom-right": case.option("alignment") == "causalbr",
        "cross-lengths": queries != keys,
        "empty-segments": 0 in (*queries, *keys),
        "grouped-heads": sizes.H != sizes.Hkv,
        "value-size": sizes.D != sizes.Dv,
    }


def validate_lengths(case: Case, part: str) -> None:
    """Raises ValueError unless the lengths add up to the sizes. `part`: the word for a segment in
    messages, "segment" or "sample"."""
    query_and_key_lengths, s = case.option("segments"), case.sizes
    if query_and_key_lengths is None:
        raise ValueError(f"{case.operator} needs lengths of {part}s, as in seg5.7.12: {case.id}")
    totals = zip(("queries", "keys"), query_and_key_lengths, (s.Lq, s.Lk), strict=True)
    for side, lengths, total in totals:
        if (len(lengths), sum(lengths)) != (s.B, total):
            raise ValueError(
                f"{case.operator} has b {part}s whose lengths add up to the number of {side}: "
                f"expected {s.B} with {total}, got {len(lengths)} with {sum(lengths)}: {case.id}"
            )
    if not (s.Lq and s.Lk):
        raise ValueError(f"{case.operator} needs a query and a key in some {part}: {case.id}")


def validate(case: Case) -> None:
    validate_lengths(case, "segment")
    queries, keys = case.option("segments")
    alignment = case.option("alignment")
    if alignment == "causalbr" and queries == keys:
        raise ValueError(
            f"with equal numbers of queries and keys write causal, not causalbr: {case.id}"
        )
    for query_count, key_count in zip(queries, keys, strict=True):
        if alignment == "causalbr" and key_count < query_count:
            raise ValueError(f"with causalbr every query needs a key: {case.id}")


def completed(sizes: Sizes, numbers: Sequence[int]) -> tuple[Sizes, Mapping[str, Any]]:
    """Returns sizes and segments of a random case. In an even count of numbers each pair is a segment:
    the smaller number its queries, the larger its keys. In an odd count each number is a segment's
    queries and keys."""
    queries = keys = tuple(numbers)
    if len(numbers) % 2 == 0:
        pairs = tuple(zip(numbers[::2], numbers[1::2], strict=True))
        queries = tuple(min(pair) for pair in pairs)
        keys = tuple(max(pair) for pair in pairs)
    new_sizes = replace(sizes, B=len(queries), Lq=sum(queries), Lk=sum(keys))
    return new_sizes, {"segments": (queries, keys)}


AXES_OF_CASES = {
    "sizes": (
        "mqa/b3h4q10k24d8v6/seg3.1.6x5.12.7", "gqa2/b3h4q24k24d8/seg5.7.12",
        "gqa2/b4h4q24k24d8/seg12.0.11.1", "mha/b4h4q24k24d8/seg0.7.17.0",
        "gqa2/b4h4q10k24d8/seg3.0.6.1x5.11.7.1", "gqa2/b5h4q5k57d8/seg1.1.1.1.1x17.8.16.1.15",
        "mha/b3h2q180k180d8/seg140.9.31", "gqa2/b5h4q64k64d8/seg17.15.0.24.8",
        "gqa2/b5h4q4k57d8/seg1.0.1.1.1x17.8.16.1.15",
        "mha/b4h2q64k128d8/seg8.24.16.16x16.40.32.40", "gqa2/b3h4q129k129d64/seg1.64.64",
        "gqa8/b2h16q48k48d128/seg16.32", "gqa4/b3h8q3k321d64/seg1.1.1x160.33.128",
        "gqa2/b3h4q200k200d64/seg9.160.31", "gqa2/b2h4q48k48d192v128/seg16.32",
        "gqa8/b3h32q18k33d80/seg1.1.16x9.8.16",
        "gqa2/b2h4q20k40d256/seg4.16x8.32", "mha/b1h4q24k24d8/seg24",
    ),
    "alignment": ("", "causal", "causalbr"),
    "scale": ("", "scale0.3", "scale-0.2"),
    "recipe": ("", "large", "tiny"),
}  # fmt: skip


def has_two_answers(row: Row) -> bool:
    """Returns True for causal segments with different numbers of queries and keys: some interfaces align
    the flag at the first query, some at the last."""
    return row.get("alignment") == "causal" and "x" in str(row.get("sizes", ""))


DRAWN = covering_of(
    "packed",
    AXES_OF_CASES,
    is_excluded=lambda row: has_two_answers(row) or is_wide_in_float64(row),
)

MANY_SEGMENTS = f"packed/none/mha/{{dt}}/b40h2q80k80d8/seg{'.'.join(['2'] * 40)}"

GRADIENTS = covering_of(
    "packed",
    {
        "dtype": ("f32", "bf16"),
        "sizes": (
            "gqa2/b3h4q24k24d8/seg5.7.12", "mqa/b3h4q10k24d8v6/seg3.1.6x5.12.7",
            "mha/b4h4q24k24d8/seg0.7.17.0", "gqa2/b4h4q10k24d8/seg3.0.6.1x5.11.7.1",
            "gqa2/b5h4q5k57d8/seg1.1.1.1.1x17.8.16.1.15", "mha/b3h2q129k129d8/seg40.40.49",
            "gqa2/b5h4q64k64d64/seg17.15.0.24.8", "mha/b4h2q64k128d8/seg8.24.16.16x16.40.32.40",
            "gqa8/b2h16q48k48d128/seg16.32", "gqa2/b2h4q20k40d256/seg4.16x8.32",
        ),
        "alignment": ("causal", "", "causalbr"),
        "scale": ("", "scale0.3"),
        "recipe": ("", "large"),
    },
    is_excluded=has_two_answers,
)  # fmt: skip
"""Decoding, borders of chunks of 16, 32 and 64 rows inside segments, segments that share blocks of 64
rows, and heads that people run."""

PACKED = Operator(
    name="packed",
    text="attention over sequences packed into one array, each by itself",
    topic=("packed", "segments without padding"),
    words=WORDS,
    axes=axes,
    draw=draw,
    outputs=lambda case: {"output": "qhv"},
    needs=needs,
    validate=validate,
    asks=Asks(
        plain="packed/none/mha/{dt}/b3h4q24k24d8/seg5.7.12",
        plain_kinds=("packed/none/gqa4/bf16/b2h8q24k24d128/seg8.16/causal",),
        cases=(
            Ask(
                "packed/none/gqa2/{dt}/b3h4q24k24d8/seg5.7.12/causal",
                # without any option, and decoding alone
                "packed/none/gqa2/f32/b4h4q10k24d8/seg3.0.6.1x5.11.7.1/causalbr",
                "packed/none/gqa2/f32/b5h4q5k57d8/seg1.1.1.1.1x17.8.16.1.15/causalbr",
                why="a causal flag; segments without queries; decoding alone",
            ),
            Ask(DRAWN, dtypes="array"),
            Ask(MANY_SEGMENTS, since="standard", why="more segments than a block has threads"),
        ),
        gradients=(
            Ask(
                "packed/none/mha/{dt}/b3h4q24k24d8/seg5.7.12",
                dtypes="float32 first",
                why="gradients without any option",
            ),
            Ask(
                "packed/none/gqa2/f32/b3h4q24k24d8/seg5.7.12/causal",
                why="gradients of grouped heads with a causal flag",
            ),
            Ask(GRADIENTS, dtypes="array", since="standard"),
        ),
    ),
    options=(
        Option("segments", LENGTHS, parse_lengths, token_of_lengths),
        choice("alignment", ALIGNMENTS),
        SCALE,
    ),
    recipes=("normal", "large", "tiny", "ties", "onehot", "integers"),
    questions=Questions(
        elections=("nan-in-other-segment", "segment-without-keys"),
        unnamed=("nan-in-other-segment", "segment-without-keys"),
        probe="packed/none/mha/{dt}/b3h4q24k24d8/seg5.7.12",
        well_formed="packed/none/mha/f32/b3h4q24k24d8/seg5.7.12",
    ),
    array_kinds=ArrayKinds(integers=("query_lengths", "key_lengths")),
    packing=Packing(completed=completed, choose=choose),
)
