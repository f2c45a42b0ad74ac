"""The words of the suite: levels, statuses, kinds, numerics classes, features and modes."""

from __future__ import annotations

LEVELS = ("smoke", "standard", "full")
"""Levels, the one with fewest cases first."""

MODES = ("eager", "compiled")
"""How implementations are called: directly, or through their framework's compilers."""

DEVICES = ("cpu", "cuda")
"""Where implementations run."""

DIRECTIONS = ("forward", "backward", "forward+backward")
"""What is timed: the call, its derivative after the call, or both."""

NUMERICS = ("exact", "fused", "eager", "stepwise", "working", "single")
"""The numerics classes from the narrowest bound to the widest (`single` is for float64).
`suite.judge.tolerance` defines them."""

GRADES = (*NUMERICS, "none")
"""The grades of an output: the narrowest numerics class whose bound contains its error, or "none"."""

INVARIANCE_GRADES = ("bitwise", "within bound", "broken")
"""How equal two outputs of one problem are, if the problem is computed in different batches."""

INVARIANT = {
    "rerun": "a second call",
    "batch": "batch",
    "rows": "rows",
    "threads": "threads",
    "decode": "prefill and decode",
    "padding": "padding",
    "split": "split keys",
    "segments": "packed segments",
    "pages": "pages moved",
    "cutting": "other chunks",
}
"""What an answer must not depend on (`suite.test_invariance`), with the name in tables."""

STATUSES = ("pass", "fail", "known", "unsupported", "error", "crash")
"""Every cell ends in exactly one of these."""
BROKEN = ("fail", "error", "crash")
"""The statuses that fail a run."""

REFUSED = "refused"
"""The kind of an unsupported cell that a user function refused."""

REGISTERED = "registered-operator"
"""The feature of a function that is an operator registered with its framework."""

KINDS = {
    "value": "an element differs from the oracle by more than rounding explains",
    "non-finite": "NaN or infinity where the oracle is finite, or the reverse",
    "type": "the answer is not an array of the framework under test",
    "shape": "the answer does not have the shape that the problem asks for",
    "dtype": "the answer has another dtype than the inputs",
    "device": "the answer is on another device than the inputs",
    "mutated-input": "an input was changed by the call",
    "not-deterministic": "a second call on the same inputs gave other bits",
    "overwritten": "a later call, or a write into other memory, changed an earlier answer",
    "stale": "the answer depends on earlier calls, or on which arrays hold the arguments",
    "leak": "values that the mask hides influence the answer",
    "leaked-state": "the call changed a setting of the process or of the framework",
    "unequal": "two forms of one problem give answers that differ by more than rounding explains",
    "no-gradient": "an operand that the answer depends on got no gradient",
    "dropout": "dropout does not keep, scale or repeat as its rate and seed say",
    "raised": "the framework raised on a problem it does not declare unsupported",
    "forbidden": "the function called what it must not call (claim `forbid`)",
    REFUSED: "a user function refused a case that its signature and its claims allow (unsupported)",
    "registration": "a registered operator is not as it says of itself to its framework",
    "no-raise": "a malformed problem was answered silently",
    "election": "the observed answer is not the declared one",
    "stale-claim": "a case declared unsupported is computed correctly",
    "unexpected-pass": "an expected failure passed",
    "other-failure": "an expected failure failed in another way",
    "crash": "the process running the cell died",
    "timeout": "the cell ran longer than allowed",
    "harness": "the adapter or the harness broke",
}
"""Kinds of faults in a cell that did not pass."""

OF_ANSWERS = ("type", "shape", "dtype", "device", "mutated-input", "not-deterministic")
"""Kinds that are found without the values of an answer. Failures of other kinds may follow from them."""

OF_CALLS = ("mutated-input", "not-deterministic", "overwritten", "stale", "leaked-state")
"""Kinds that depend on the order of calls, and not on the compiler."""

VALUES = "values"
"""The check that compares outputs with the reference."""

GRADIENTS = ("gradients", "gradient_of_bias")
"""The checks that compare gradients with the reference."""

SEARCHED = (VALUES, "gradients")
"""The checks of random search."""

BIASES = (
    "none", "qk", "1hqk", "b1qk", "bhqk", "inf", "lowest", "deep", "alibi", "alibikeys", "bits", "ones",
    "zeros",
)  # fmt: skip
"""Additive biases:

- "qk" (Lq, Lk), "1hqk", "b1qk", "bhqk": finite unit normals of a broadcast rank.
- "inf": (B, H, Lq, Lk), about a third of the entries -inf, no row all -inf.
- "lowest": as "inf" with the dtype's lowest finite number, as many models write masks.
- "deep": (1, H, Lq, Lk), finite: unit normals in rows that lie at -60000, at 0 and at 60000 in turn.
- "alibi": (1, H, Lq, Lk), -slope |q - k| with slope 2^(-8 (h + 1) / H) (Press, Smith, Lewis, ICLR
  2022).
- "alibikeys": (1, H, 1, Lk), slope (k - Lk + 1), which libraries add instead, with the slopes of
  `alibi_slopes`.
- "bits": (B, H, Lq, Lk), zeros and ones. "ones", "zeros": (Lq, Lk). They look like boolean masks.
"""

HIDING = ("inf", "lowest")
"""Biases that hide keys."""

OPERANDS = ("query", "key", "value")
"""The operands of attention."""

AXIS_ORDERS = ("bhld", "blhd", "bhdl")
"""Memory order of the axes: (B, H, L, D), (B, L, H, D), or (B, H, D, L), where the components of a
query, key or value are not adjacent."""

FORMS = ("native", "dense")
"""How a mask is passed: by the framework's own flags if there are any, or as a boolean array."""

VARIED_FORMS = ("raw", "flag-and-mask", "flag")
"""Forms of variations, without an id:

- raw: a mask array passed unchanged.
- flag-and-mask: a mask array beside a causal flag.
- flag: flags only, and the causal mask has the alignment of the flag.
"""

RETURNED = ("none", "average", "head")
"""What a layer returns beside its output: no weights, their mean over heads (B, Lq, Lk), or all (B, H,
Lq, Lk)."""

ARRANGEMENTS = {
    "contiguous": "C-contiguous",
    "reversed": "axes in reverse order in memory",
    "transposed": "the last two axes exchanged in memory",
    "inner-stride": "every second component of an array twice as wide, NaN between them",
    "offset": "a window out of a larger array, NaN around it",
    "components": "the middle third of every row: a gap along the last axis",
    "cache": "the first rows of an array with more rows: `cache[:, :, :n]`",
    "more-heads": "the first heads of an array with more heads: `heads[:, :n]`",
    "fused": "the keys of one projection (B, L, 3, H, D)",
    "fused-heads": "the keys of one projection (B, L, H, 3, D)",
    "shifted": "contiguous, one element after the start: no address of a multiple of 16 bytes",
    "negative": "rows in reverse order in memory; in PyTorch a view that exchanges signs",
    "expanded": "one sample with stride 0 along the batch",
    "expanded-heads": "one head with stride 0 along the heads",
    "expanded-rows": "one row with stride 0 along the rows",
    "scalar": "one number with stride 0 along every axis",
    "odd-strides": "axes of size 1 with strides that no contiguous array has",
}
"""Memory layouts of values. The gaps between values must not matter."""

FEATURES = {
    "mask": "boolean masks",
    "causal": "a causal mask",
    "window": "a sliding window",
    "padding": "key lengths per sample",
    "bias": "an additive bias",
    "bias-with-mask": "a bias and a mask together",
    "scale": "an explicit scale",
    "grouped-heads": "fewer key/value heads than query heads",
    "value-size": "values and keys of different sizes (Dv != D)",
    "empty-batch": "a batch of size 0",
    "no-heads": "no heads at all (H = 0)",
    "empty-queries": "no queries (Lq = 0)",
    "inner-stride": "components that are not adjacent in memory",
    "strides": "arrays at any memory address",
    "strided-operands": "operands that are not contiguous",
    "negative-views": "operands with negative strides, or with signs that a view exchanges",
    "threads": "a number of threads that can be changed between calls",
    "calls-at-once": "calls by two threads at once",
    "mask-array": "masks given as arrays",
    "native-causal": "a native causal flag",
    REGISTERED: "an operator registered with the framework, which states rules for it",
    "other-shapes": "a compiled call with other lengths than its first ones",
    "gradient": "an output that can be differentiated",
    "gradient-of-bias": "a gradient of the bias",
    "key-width": "keys of another width than queries",
    "value-width": "values of another width than queries",
    "output-width": "an output of another width than the queries",
    "head-width": "heads whose sizes do not add up to the query's width",
    "no-projection-bias": "projections without biases",
    "cross": "keys and values that are not the query's own tensor",
    "average": "weights averaged over the heads",
    "weights": "weights of every head",
    "batch": "an input with a batch axis",
    "squeezed": "an input without a batch axis, or without a query axis",
    "projection": "queries and keys projected to a common width",
    "score-vector": "a learned vector the hidden units are weighted with",
    "learned-scale": "a learned scale",
    "odd-heads": "an odd number of heads",
    "qk-norm": "norms of the projected queries and keys",
    "splits-width": "a width that is split among the heads",
    "raw-mask": "a mask array passed unchanged",
    "causal-alone": "a causal flag without a mask",
    "dropout": "dropout of the weights",
}
"""What a case or a check needs of an implementation beyond plain attention, in words that several
operators use. `suite.spec.features` and the operators have words of their own.

An adapter passes a mask without a flag densely, so only masks that cannot be passed at all are missing.
"""
