"""Claims: properties that users may declare of their function, as its attributes or by `claims`.

    from attention_conformance.suite.spec.claims import claims

    @claims(dtypes=("f16",), head_sizes=(64, 128), equal_lengths=True)
    def flash(query, key, value, is_causal=False): ...

Without an import: `flash.dtypes = ("f16",)`. This file imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

AXES = ("bhld", "blhd", "bld", "lhd", "hld", "ld")
"""The axes of query, key and value: B samples, H heads, L rows, D components."""

MASKS = ("either", "boolean", "additive", "binary", "hides", "binary_hides")
"""What a parameter for a mask is given:

- either: booleans, True attends; beside a bias the bias with -inf where the mask hides
- boolean: booleans alone, True attends
- additive: numbers alone, -inf hides
- binary: the numbers 1 (attends) and 0
- hides: booleans alone, True hides
- binary_hides: the numbers 1 (hides) and 0
"""

F = TypeVar("F", bound=Callable[..., Any])

MARK = "__claims__"
"""The attribute of a function in which `claims` stores its claims."""


@dataclass(frozen=True)
class Claim:
    """A claim: its meaning for people, and the type of its value. With `by_dtype` the value can also be a
    dictionary of one value per short dtype name. With `operator` only its functions can make the claim.
    """

    text: str
    type: Any
    by_dtype: bool = False
    operator: str = ""


def per_dtype(text: str, kind: Any) -> Claim:
    """Returns a claim whose value may differ between dtypes."""
    return Claim(text, kind, by_dtype=True)


CLAIMS = {
    "numerics": per_dtype(
        "the numerics class; default: `stepwise`, or the wider class of the framework's own attention",
        str,
    ),
    "centred_keys": Claim(
        "True if a constant, such as their mean, is subtracted from the keys before the product (K "
        "smoothing)",
        bool,
        operator="sdpa",
    ),
    "absorbs": Claim(
        "for latent attention: True if latents are attended with projected queries, False if keys and "
        "values are formed; default: either, with the larger of both bounds",
        bool,
        operator="latent",
    ),
    "codes": Claim(
        "for caches: the format in which keys and values are kept, with a scale of every token and head: "
        "int8, int4, e4m3, e5m2",
        str,
        operator="cached",
    ),
    "stored_parts": Claim(
        "True if answers over parts of the keys are stored in the dtype before they are merged (split "
        "keys)",
        bool,
    ),
    "parameters": Claim(
        "what its parameters are given, by name: {'m': 'attn_mask'} (docs/signatures.md); `--parameter`",
        dict[str, str],
        operator="sdpa",
    ),
    "axes": Claim(
        "the axes of operands and output: bhld, blhd, bld (no heads), lhd, hld (one sample), ld (one "
        "sample and head); default: found by a trial call",
        Literal[AXES],
        operator="sdpa",
    ),
    "output_axes": Claim(
        "bhld or blhd, if the output has another order of heads and rows than the operands",
        Literal["bhld", "blhd"],
        operator="sdpa",
    ),
    "lse_base": Claim(
        "2 if the log-sum-exp is a logarithm to the base 2", Literal["2"], operator="sdpa"
    ),
    "masks": Claim(
        "what a parameter for a mask is given: boolean (True attends), additive (-inf hides), either of "
        "these, binary (1 attends, 0 hides), hides (True hides), binary_hides (1 hides, 0 attends); "
        "default: what the framework's own attention is given",
        Literal[MASKS],
        operator="sdpa",
    ),
    "dtypes": Claim("supported dtypes: f16, bf16, f32, f64", tuple[str, ...]),
    "head_sizes": per_dtype("supported sizes D of queries and keys", tuple[int, ...]),
    "value_sizes": per_dtype(
        "supported sizes Dv of values; default: `head_sizes`", tuple[int, ...]
    ),
    "queries": per_dtype("the supported number of queries, 1 for a decoding function", int),
    "max_length": per_dtype("the largest number of queries and of keys", int),
    "lengths_multiple_of": per_dtype(
        "the number that the numbers of queries and of keys are multiples of; two numbers for queries, "
        "keys",
        tuple[int, ...],
    ),
    "equal_lengths": per_dtype("True if the number of queries must equal the number of keys", bool),
    "equal_heads": per_dtype(
        "True if the number of key heads must equal the number of query heads", bool
    ),
    "scales": per_dtype("the smallest and the largest scale", tuple[float, float]),
    "page_sizes": per_dtype("supported numbers of slots of a page", tuple[int, ...]),
    "contiguous": Claim("True if query, key and value must be contiguous", bool),
    "forward_only": Claim("True if it cannot be differentiated", bool),
    "mended_interpreter": Claim(
        "True to have the bfloat16 of Triton's interpreter mended (backend `triton`)", bool
    ),
    "threads": Claim(
        "`one` if two threads must not call it at once, as with one workspace for all calls",
        Literal["one"],
    ),
    "deterministic": Claim(
        "False if two calls on the same inputs may give other bits, within the bounds", bool
    ),
    "bitwise": Claim(
        "what may change without changing a bit of an answer: batch, rows, threads, decode (prefill and "
        "decoding), padding, split, segments, pages, cutting (the chunks of a cache)",
        tuple[str, ...],
    ),
    "forbid": Claim(
        "functions of the framework that it does not call, as torch.nn.functional."
        "scaled_dot_product_attention; `--forbid`",
        tuple[str, ...],
    ),
    "elections": Claim(
        "answers to election questions: one per question, or one per short dtype name; `--elect`",
        dict[str, str | dict[str, str]],
    ),
    "drop_in": Claim(
        "True if it replaces the framework's own attention: it refuses malformed problems, and has the "
        "same elections, but for accidental ones; `--drop-in`",
        bool,
    ),
    "allow_unused": Claim(
        "True if it may have parameters with nearly the names of those passed; `--allow-unused`",
        bool,
    ),
    "expect": Claim(
        "manifests of expected failures: paths, from the folder of the function's file; `--expect`",
        tuple[Path, ...],
    ),
}
"""The claims by name."""


def claims(**values: Any) -> Callable[[F], F]:
    """Returns a decorator that stores these claims, by name, in a function or a class of layers. Raises
    TypeError for unknown claims."""
    unknown = ", ".join(name for name in values if name not in CLAIMS)
    if unknown:
        raise TypeError(f"unknown claim {unknown}; valid: {', '.join(CLAIMS)}")

    def mark(function: F) -> F:
        setattr(function, MARK, {**getattr(function, MARK, {}), **values})
        return function

    return mark
