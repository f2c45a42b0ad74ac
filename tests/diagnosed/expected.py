"""What a right diagnosis says of a fault, and the words for it.

All regular expressions of a fault must match somewhere in the sentence and the hint of a diagnosis, in
any case of letters. They name the concept with the words that people have for it, not a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """Families a diagnosis may name, the likeliest first, and regular expressions that its text
    must match."""

    families: tuple[str, ...]
    patterns: tuple[str, ...]


@dataclass(frozen=True)
class Kernel:
    """A kernel as a run is given it, and its faults: none, one or two."""

    name: str
    """`masks.py:hides_itself`, in this folder."""
    faults: tuple[Fault, ...] = ()
    backend: str = "torch"
    like: str = ""


def fault(families: str, *patterns: str) -> Fault:
    """A fault of families with blanks between them."""
    return Fault(tuple(families.split()), patterns)


def one(name: str, families: str, *patterns: str, **more: str) -> Kernel:
    """A kernel with one fault."""
    return Kernel(name, (fault(families, *patterns),), **more)


def two(name: str, *faults: Fault) -> Kernel:
    """A kernel with two faults."""
    return Kernel(name, faults)


IGNORED = (
    r"ignor|drop|lost|lose|no effect|never|not (read|applied|used|added|heeded|honou?red)|without|"
    r"forg[eo]t|unmasked|missing|lacks?\b|is not\b|does not|infinite|instead|nothing"
)
"""Words for an argument that changes nothing."""

NEXT_KEY = (
    r"next key|one (key|position|step|column)s? (too|more|further|later|ahead|wider)|"
    r"i ?\+ ?1|off[ -]by[ -]one|"
    r"one key|tril\(.*1\)|triu\(.*2\)|diagonal"
)
OWN_KEY = (
    r"own key|own position|itself|strict|j < i|i ?- ?1|triu\((.*, ?)?(diagonal=)?0?\)|"
    r"diagonal|off[ -]by[ -]one"
)
TRUE_HIDES = (
    r"invert|inverse|polarity|opposite|True.{0,30}(hid|mask|ignor)|complement|negat|~|revers|"
    r"where (it|the mask) (should )?hid|hidden keys|exchang|swap"
)
TILED = r"til(e|ing)|repeat|interleav|group|modul|% ?H|h % |reads? (key|value)"
NO_SCALE = (
    r"^(?!.*(gradient|autocast|thread))"
    r".*(no scal|not (scaled|divided)|unscaled|scale.{0,40}\b1(\.0*)?\b|"
    r"without.{0,20}scal|missing.{0,20}scal|"
    r"lacks?.{0,20}scal|scale.{0,20}(missing|lost|forgot|never|ignored|dropped)|forg[eo]t.{0,20}(scal|divi)|sqrt)"
)
BY_D = (
    r"^(?!.*(all heads|width)).*"
    r"(1 ?/ ?(head_)?(D|size)\b|divided by (the )?(D|size|head)|root|sqrt|\*\* ?-1\b|squared?)"
)
OVER_QUERIES = r"quer|column|wrong axis|other axis|another axis|dim ?= ?-2|axis ?= ?-2|dim ?= ?2"
OVER_HEADS = r"head|wrong axis|other axis|another axis"
AFTER_SOFTMAX = (
    r"after|behind|renormali|weights?.{0,40}(mask|zero|hid)|sums? (of|to|less|below)|"
    r"do(es)? not sum"
)
ZERO_SCORE = (
    r"multipl|score.{0,30}(\b0\b|zero)|(\b0\b|zero).{0,30}(score|logit)|1e-9|exp\(0\)|logit.{0,30}(\b0\b|zero)|"
    r"product with the mask|factor"
)
BF16 = r"bfloat16|bf16|8 bits|7 bits"
F16 = r"float16|\bf16\b|\bhalf\b|10 bits|11 bits"
DROPOUT_ON = (
    r"dropout|random|determinis|other (bits|numbers|answer)|two calls|twice|second call|differ"
)
MORE_IN_SUM = (
    r"denominator|\bsum|one more|extra|additional|\+ ?1\b|sink|less than (1|one)|"
    r"epsilon|\beps\b|\+ ?eps"
)

next_key = fault("mask", NEXT_KEY)
true_hides = fault("mask", TRUE_HIDES)
no_scale = fault("scale scores", NO_SCALE)
by_d = fault("scale", r"scal|divi", BY_D)
tiled = fault("heads", r"head|group", TILED)
scale_ignored = fault("scale", r"scal", IGNORED + r"|default|always|1 ?/ ?sqrt")
bias_scaled = fault("scores scale bias mask", r"bias", r"scal|factor|times|multipl|divi")
viewed = fault(
    "heads layout",
    (
        r"reshape|view|transpos|permut|scrambl|\baxes|\baxis|mixed|mixes|(heads?.{0,40}(rows?|length|quer|position))|"
        r"order|rearrang"
    ),
)
mask_beside_flag = fault("mask", r"mask", IGNORED, r"flag|causal|both|together|beside")
own_key = fault("mask", OWN_KEY)
future_only = fault(
    "mask", r"future|later|upper|triu|ahead|behind|j > i|k > q|opposite|invert|revers"
)
first_head = fault("heads", r"first|head 0|single|one (key )?head|multi-?query|key head")
masked_weights = fault("mask softmax", AFTER_SOFTMAX)
zero_score = fault("mask scores", ZERO_SCORE)
no_maximum = fault("numerics softmax", r"overflow|maxim|\bmax\b|largest|exp\b")
window_wider = fault(
    "mask", r"window", r"one|wide|off[ -]by|\+ ?1|further|more|more than|reaches \d+ keys"
)
cap_ignored = fault("scores", r"cap", IGNORED)
slopes_sign = fault(
    "scores mask",
    r"slope|alibi|distance",
    r"sign|revers|opposite|negat|flip|-1|reward|grow|posit|plus|added|\+",
)
whole_width = fault("scale", r"scal|divi", r"width|all heads|H ?\*? ?D|model|embed|heads")
one_more = fault("softmax", MORE_IN_SUM)
halves_averaged = fault(
    "softmax state numerics",
    r"tile|block|part|chunk|half|halves|split",
    r"normali|softmax|average|mean|separate|alone|own|sum|merge|weigh",
)
