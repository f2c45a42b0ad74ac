"""What a right diagnosis says of a fault, and the words for it.

All regular expressions of a fault must match somewhere in the first sentence of a diagnosis, in any case
of letters. They name the concept with the words that people have for it, not a sentence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Fault:
    """Regular expressions that the text of a diagnosis must match."""

    patterns: tuple[str, ...]

    def is_named(self, text: str) -> bool:
        return all(re.search(pattern, text, re.IGNORECASE) for pattern in self.patterns)


@dataclass(frozen=True)
class Kernel:
    """A kernel as a run is given it, and its faults: none, one or two."""

    name: str
    """`masks.py:hides_itself`, in this folder."""
    faults: tuple[Fault, ...] = ()
    backend: str = "torch"
    like: str = ""


def fault(*patterns: str) -> Fault:
    return Fault(patterns)


def one(name: str, expected: Fault, like: str = "") -> Kernel:
    """A kernel in PyTorch with one fault, of an operator."""
    return Kernel(name, (expected,), like=like)


IGNORED = (
    r"ignor|drop|lost|lose|no effect|never|not (read|applied|used|added|heeded|honou?red)|without|"
    r"forg[eo]t|unmasked|missing|lacks?\b|is not\b|does not|infinite|instead|nothing"
)
"""Words for an argument that changes nothing."""

OVER_HEADS = r"head|wrong axis|other axis|another axis"
BF16 = r"bfloat16|bf16|8 bits|7 bits"
F16 = r"float16|\bf16\b|\bhalf\b|10 bits|11 bits"
DROPOUT_ON = (
    r"dropout|random|determinis|other (bits|numbers|answer)|two calls|twice|second call|differ"
)
MORE_IN_SUM = (
    r"denominator|\bsum|one more|extra|additional|\+ ?1\b|sink|less than (1|one)|"
    r"epsilon|\beps\b|\+ ?eps"
)

by_d = fault(
    r"scal|divi",
    (
        r"^(?!.*(all heads|width)).*"
        r"(1 ?/ ?(head_)?(D|size)\b|divided by (the )?(D|size|head)|root|sqrt|\*\* ?-1\b|squared?)"
    ),
)
viewed = fault(
    r"reshape|view|transpos|permut|scrambl|\baxes|\baxis|mixed|mixes|(heads?.{0,40}(rows?|length|quer|position))|"
    r"order|rearrang"
)
mask_beside_flag = fault(r"mask", IGNORED, r"flag|causal|both|together|beside")
future_only = fault(r"future|later|upper|triu|ahead|behind|j > i|k > q|opposite|invert|revers")
no_maximum = fault(r"overflow|maxim|\bmax\b|largest|exp\b")
window_wider = fault(r"window", r"one|wide|off[ -]by|\+ ?1|further|more|more than|reaches \d+ keys")
one_more = fault(MORE_IN_SUM)
halves_averaged = fault(
    r"tile|block|part|chunk|half|halves|split",
    r"normali|softmax|average|mean|separate|alone|own|sum|merge|weigh",
)
