"""The words of the suite, each fact once: what statuses, kinds, classes, features and modes there are."""

from __future__ import annotations

LEVELS = ("smoke", "standard", "full")
"""How many cases are asked, the fewest first."""

MODES = ("eager", "compiled")
"""Implementations as they are called, or through their framework's compilers."""

DEVICES = ("cpu", "cuda")
"""Where implementations run."""

DIRECTIONS = ("forward", "backward", "forward+backward")
"""What is timed of a call: the call, its derivative alone once it was called, or both."""

NUMERICS = ("exact", "fused", "eager", "stepwise", "working", "single")
"""The numerics classes from the narrowest bound to the widest (`single` is float64's own). What each
means is in `suite.judge.tolerance`."""

GRADES = (*NUMERICS, "none")
"""The narrowest class whose bound an answer keeps; "none": it keeps no bound."""

INVARIANCE_GRADES = ("bitwise", "within bound", "broken")
"""How alike two answers to one problem are that were computed in different company."""

STATUSES = ("pass", "fail", "known", "unsupported", "error", "crash")
"""Every cell ends in exactly one of these."""
BROKEN = ("fail", "error", "crash")
"""The statuses that fail a run."""

REFUSED = "refused"
"""The kind of an unsupported cell that a person's function refused."""

KINDS = {
    "value": "an element is further from the oracle than rounding explains",
    "non-finite": "NaN or infinity where the oracle is finite, or the reverse",
    "type": "the answer is not an array of the framework under test",
    "shape": "the answer has another shape than the problem asks for",
    "dtype": "the answer has another dtype than the inputs",
    "device": "the answer is on another device than the inputs",
    "mutated-input": "an input was changed by the call",
    "not-deterministic": "a second call on the same inputs gave other bits",
    "overwritten": "a later call changed an earlier answer",
    "stale": "the answer hangs on earlier calls, or on which arrays hold the arguments",
    "leak": "what the mask hides has influence",
    "leaked-state": "the call left a setting of the process or of the framework other than it was",
    "unequal": "two forms of one problem give answers further apart than rounding explains",
    "no-gradient": "an operand that the answer hangs on got no gradient",
    "dropout": "dropout keeps, scales or repeats otherwise than its rate and seed say",
    "raised": "the framework raised on a problem it does not declare unsupported",
    REFUSED: "a person's function refused a case that its signature and its claims allow (unsupported)",
    "no-raise": "a malformed problem was answered silently",
    "election": "the observed answer is not the declared one",
    "stale-claim": "a declared refusal that in fact computes the right answer",
    "unexpected-pass": "an expected failure passed",
    "other-failure": "an expected failure failed in another way",
    "crash": "the process running the cell died",
    "timeout": "the cell ran longer than allowed",
    "harness": "the adapter or the harness broke",
}
"""What can be wrong with a cell that did not pass."""

OF_CALLS = ("mutated-input", "not-deterministic", "overwritten", "stale", "leaked-state")
"""The kinds that hang on what was called, in which order, and on no compiler."""

VALUES = "values"
"""The check that holds answers against the reference."""

GRADIENTS = ("gradients", "gradient_of_bias")
"""The checks that hold gradients against their reference."""

SEARCHED = (VALUES, "gradients")
"""The checks that cases drawn by the search are judged by."""

BIASES = ("none", "qk", "1hqk", "b1qk", "bhqk", "inf", "lowest", "alibi", "alibikeys")
"""Additive biases: finite unit normals of a broadcast rank ("qk" is (Lq, Lk)); "inf": (B, H, Lq, Lk)
with about a third of the entries -inf and no row all -inf; "lowest": the same with the dtype's lowest
finite number, as models write masks; "alibi": (1, H, Lq, Lk), -slope |q - k|
with slope 2^(-8 (h + 1) / H) (Press, Smith, Lewis, ICLR 2022); "alibikeys": (1, H, 1, Lk), slope
(k - Lk + 1), what libraries add in its place, with the slopes that the authors' code has where H is no
power of two."""

HIDING = ("inf", "lowest")
"""Biases that hide keys."""

OPERANDS = ("query", "key", "value")
"""The arrays that attention is made of."""

AXIS_ORDERS = ("bhld", "blhd", "bhdl")
"""Order of the axes in memory: (B, H, L, D), (B, L, H, D), or (B, H, D, L), where the components of a
query, key or value do not lie side by side."""

FORMS = ("native", "dense")
"""How a mask is passed: by the framework's own flags where it has them, or as a boolean array."""

VARIED_FORMS = ("raw", "flag-and-mask", "flag")
"""Forms that variations have, and no id: a mask array as the caller made it, one beside a causal flag, or
by flags with a causal mask that is what the flag means, however that is aligned."""

RETURNED = ("none", "average", "head")
"""What a layer returns beside its output: no weights, their mean over the heads (B, Lq, Lk), or those of
every head (B, H, Lq, Lk)."""

ARRANGEMENTS = {
    "contiguous": "C-contiguous",
    "reversed": "axes in reverse order in memory",
    "transposed": "the last two axes exchanged in memory",
    "inner-stride": "every second component of an array twice as wide, NaN between them",
    "offset": "a window out of a larger array, NaN around it",
    "expanded": "one sample with stride 0 along the batch",
    "expanded-heads": "one head with stride 0 along the heads",
    "scalar": "one number with stride 0 along every axis",
    "odd-strides": "axes of size 1 with strides that no contiguous array has",
}
"""How values can lie in memory; what the gaps hold must not matter."""

FEATURES = {
    "mask": "boolean masks",
    "causal": "a causal mask",
    "window": "a sliding window",
    "padding": "key lengths per sample",
    "bias": "an additive bias",
    "bias-with-mask": "a bias and a mask together",
    "scale": "an explicit scale",
    "grouped-heads": "fewer key/value heads than query heads",
    "value-size": "values of another size than keys",
    "empty-batch": "a batch of size 0",
    "no-heads": "no heads at all (H = 0)",
    "empty-queries": "no queries (Lq = 0)",
    "inner-stride": "components that do not lie side by side in memory",
    "strides": "arrays that may lie anywhere in memory",
    "strided-operands": "operands that are not contiguous",
    "threads": "a number of threads that can be changed between calls",
    "mask-array": "masks given as arrays",
    "native-causal": "a causal flag of its own",
    "other-shapes": "a compiled call with other lengths than its first ones",
    "gradient": "an answer that can be differentiated",
    "gradient-of-bias": "a bias that can be differentiated by",
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
    "raw-mask": "a mask array as the caller made it",
    "causal-alone": "a causal flag without a mask",
    "dropout": "dropout of the weights",
    "pre-norm": "norms before what a residual leads past",
    "gelu": "the activation gelu",
    "interleaved": "a rotation of neighbouring components",
    "halves": "a rotation of components half a head apart",
    "rotary-base": "a base of frequencies other than 10000",
    "partial-rotation": "a rotation of the first components alone",
    "positions": "positions that the call is given",
    "gathered-positions": "positions of every sample, in any order",
    "rotary-scaling": "frequencies scaled for longer sequences",
    "position-table": "sine and cosine of so many positions, made beforehand",
    "causal-bottom-right": "a causal mask of packed segments with more keys than queries, aligned at the "
    "last query",
    "empty-parts": "partial answers without keys, to be merged",
    "several-parts": "more than two partial answers to be merged",
    "cross-lengths": "packed segments with other numbers of queries than of keys",
    "length-arrays": "lengths of packed segments as an array that is looked at",
    "empty-segments": "packed segments without a query, or without a token",
}
"""What a case, or a check, may need of an implementation beyond plain attention, besides the words of
`suite.spec.features`. Masks that an implementation has no flag for are passed densely by its adapter, so
that only what cannot be passed at all is lacking."""
