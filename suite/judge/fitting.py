"""Find how a user's function is called, by trial calls.

The names of parameters show their arguments (`backends.user.signature`). Calls on small inputs, whose
sizes are pairwise distinct, show the rest: axes, kinds of masks, the output returned beside `output`, and
the key from which a window counts. What may be a fault, or makes the suite test less, is not bound: the
advice is to claim it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import (
    ENDS,
    ForbiddenCall,
    Implementation,
    PreparedCall,
)
from attention_conformance.suite.judge.answer import swap_heads_and_length, values_of
from attention_conformance.suite.judge.diagnosis.instrument import MOST_CALLS, one_hot_inputs
from attention_conformance.suite.judge.elections.probe import Probe
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.judge.verdict import WrongAnswer
from attention_conformance.suite.spec.binding import (
    ADDING,
    AXES,
    HIDING,
    LAYOUTS,
    MASK_WORDS,
    Binding,
)
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal, Window

CallContext = Callable[[Case], AbstractContextManager[None]]
"""Makes the context in which a function is called on a case; the context may raise TimeOver."""

BIASED = "sdpa/none/mha/{dt}/b2h3q5k7d8/bias.qk"
GROUPED = "sdpa/none/gqa2/{dt}/b2h4q5k7d8"
COMMON = "sdpa/none/mha/{dt}/b2h4q16k32d64"
"""Sizes that most kernels accept. With as many keys as queries a function without an axis of samples
would answer, since it could take rows for samples."""

WINDOWS = ("window", "window_left")
LEFT, RIGHT = 3, 1
NO_ADVICE = ("", ())

MASK_KINDS = {
    "hides": "True hides a key",
    "binary_hides": "it is given the numbers 1, which hides a key, and 0",
    "additive": "it is given 0 and -inf, which are added to the scores",
    "binary": "it is given the numbers 1, which attends, and 0",
}
"""The meaning of a mask that is no boolean mask of attended pairs, by the claim `masks`."""


def fit(function: Implementation, call_context: CallContext = lambda case: nullcontext()) -> None:
    """Bind a user's function of plain attention by trial calls, and set `function.advice`. A function
    that makes a forbidden call keeps its binding. Raises the errors of `call_context`."""
    if hasattr(function, "rebind"):
        with suppress(ForbiddenCall):
            function.advice = Fitting(function, call_context).fit()


class Fitting:
    """The trial calls of one function."""

    def __init__(self, function: Any, call_context: CallContext) -> None:
        self.function, self.call_context = function, call_context
        dtypes = function.declared.dtypes
        self.dtype = DTYPES["f32" if "f32" in dtypes else dtypes[0]]
        self.probe = Probe(function, self.dtype)

    def fit(self) -> tuple[str, tuple[str, ...]]:
        """Bind axes, heads, the causal flag, the window and the log-sum-exp, in this order. Returns
        advice: a text, and the features that it is about; `NO_ADVICE` for none."""
        has_right_axes = self.fit_axes()
        if not has_right_axes and self.output(self.plain_inputs()) is None:
            return NO_ADVICE
        is_native = self.is_native
        self.fit_heads(is_native)
        if not is_native or any(map(self.function.binder.name_of, WINDOWS)):
            self.fit_causal()
            self.fit_window()
        if not is_native:
            self.fit_lse()
        return self.advice_on_masks(is_native) if has_right_axes else NO_ADVICE

    @property
    def binding(self) -> Binding:
        return self.function.binding

    @property
    def is_native(self) -> bool:
        """True if the function is called as the framework's own attention."""
        return not self.function.binder.bound and self.binding.but(causal="") == Binding()

    def call(self, inputs: Inputs) -> tuple[Any, PreparedCall] | None:
        """Calls the function. Returns its return value and the prepared call; None if the call raises.
        Raises ForbiddenCall, and the errors of the context."""
        prepared = self.function.prepare(inputs)
        try:
            with self.call_context(inputs.case):
                return prepared(), prepared
        except (*ENDS, ForbiddenCall):
            raise
        except BaseException:
            return None

    def values(self, array: Any, prepared: PreparedCall) -> np.ndarray | None:
        """Returns the values of an output as (B, H, L, D), in float64; None if `array` is no array of the
        framework with four axes."""
        try:
            values = values_of(self.function.backend, array)
        except WrongAnswer:
            return None
        return swap_heads_and_length(values, prepared) if values.ndim == 4 else None

    def output(self, inputs: Inputs) -> np.ndarray | None:
        """Returns the output (B, H, L, D) for the inputs; None if the call raises, or the output has not
        four axes. Of a tuple or list the first element is the output."""
        answer = self.call(inputs)
        if answer is None:
            return None
        native, prepared = answer
        return self.values(native[0] if isinstance(native, tuple | list) else native, prepared)

    def is_right(self, inputs: Inputs) -> bool:
        """True if the function's answer to the inputs is right."""
        got = self.output(inputs)
        if got is None or got.shape != inputs.full_shape("output"):
            return False
        return self.probe.matches(got, inputs)

    def is_right_with(self, inputs: Inputs, **changes: str) -> bool:
        """True if the function is right with `changes` of its binding, False also if it raises. The
        binding is restored afterwards."""
        before = self.binding
        self.function.rebind(before.but(**changes))
        try:
            return self.is_right(inputs)
        finally:
            self.function.rebind(before)

    def plain_inputs(self, mask: str = "none") -> Inputs:
        return self.probe.inputs(mask)

    # Axes, and returned arrays.

    def candidate_axes(self) -> Iterator[str]:
        """Yields the axis orders to try, the most probable first. "" is the order of the framework's own
        attention. Only the claimed or bound order, if there is one."""
        if self.binding.axes:
            yield self.binding.axes
            return
        native_axes = self.function.native.axis_order
        candidates = LAYOUTS.get(self.function.binder.layout) or dict.fromkeys((native_axes, *AXES))
        yield from ("" if axes == native_axes else axes for axes in candidates)

    def fit_axes(self) -> bool:
        """Bind the axis order, and the kind of a second output. Returns True if an answer was right.
        Without a right answer the first order with an output of the right shape is bound, or else the
        first order with any output."""
        before, first_shaped, first_answered = self.binding, None, None
        four_axes_answered: bool | None = None
        for axes in self.candidate_axes():
            if self.has_fewer_axes(axes):
                if four_axes_answered is None:
                    four_axes_answered = bool(first_shaped) or self.answers_four_axes(before)
                if four_axes_answered:
                    break  # the answer is wrong, or the size of an axis
            self.function.rebind(before.but(axes=axes))
            inputs = self.plain_inputs()
            answer = self.call(inputs)
            if answer is None:
                continue
            native, prepared = answer
            is_pair = isinstance(native, tuple | list) and len(native) > 1
            values = self.values(native[0] if is_pair else native, prepared)
            if values is None:
                continue
            kind = self.second_output_kind(native[1], inputs) if is_pair else ""
            binding = before.but(axes=axes, returns=kind)
            if self.swaps_output_axes and not before.output_axes:
                binding = binding.but(output_axes=self.opposite_order(axes))
                values = values.swapaxes(1, 2)
            first_answered = first_answered or binding
            if values.shape != inputs.full_shape("output"):
                continue
            first_shaped = first_shaped or binding
            if self.probe.matches(values, inputs):
                self.function.rebind(binding)
                return True
        self.function.rebind(first_shaped or first_answered or before)
        return False

    def answers_four_axes(self, binding: Binding) -> bool:
        """True if the function answers operands with four axes in the sizes of `COMMON`, in some axis
        order. Changes the binding."""
        if binding.axes:
            return False
        self.function.rebind(binding)
        inputs = self.probe.draw(COMMON.format(dt=self.dtype.name))
        for axes in [axes for axes in self.candidate_axes() if not self.has_fewer_axes(axes)]:
            self.function.rebind(binding.but(axes=axes))
            if self.call(inputs) is not None:
                return True
        return False

    def has_fewer_axes(self, axes: str) -> bool:
        """True if an operand in this axis order has fewer than four axes."""
        return bool(AXES[axes or self.function.native.axis_order].index)

    @property
    def swaps_output_axes(self) -> bool:
        """True if the signature is that of transformers, which has a parameter for the module. Such
        functions swap heads and rows of the output. In any other function this may be a fault."""
        return bool(self.function.binder.name_of("module"))

    def opposite_order(self, axes: str) -> str:
        """Returns "blhd" if `axes` are in the order "bhld", else "bhld"."""
        order = AXES[axes or self.function.native.axis_order].order
        return "blhd" if order == "bhld" else "bhld"

    def second_output_kind(self, array: Any, inputs: Inputs) -> str:
        """Returns the kind of the second output by its shape: "weights" or "lse"; "None" if it is None,
        "" for other shapes."""
        if array is None:
            return "None"
        sizes, shape = inputs.sizes, tuple(getattr(array, "shape", ()))
        if shape[-2:] == (sizes.Lq, sizes.Lk):
            return "weights"
        rows = sizes.B * sizes.H * sizes.Lq
        return "lse" if shape and int(np.prod(shape)) == rows else ""

    def fit_lse(self) -> None:
        """Bind the axes of the log-sum-exp, by its shape. For signatures with a known layout (FlashInfer)
        the base 2 is bound, too, if it fits better. In any other function another base may be a
        fault."""
        inputs = self.plain_inputs().replace(lse=True)
        if self.function.refuses(inputs):
            return
        before = self.binding
        for axes in ("", self.opposite_order(before.axes)[:3]):
            binding = before.but(lse_axes=axes)
            self.function.rebind(binding)
            outputs = self.output_and_lse(inputs)
            if outputs is None:
                continue
            may_have_base_2 = self.function.binder.layout in LAYOUTS and not before.lse_base
            if may_have_base_2 and not self.outputs_are_right(outputs, inputs):
                self.function.rebind(binding.but(lse_base="2"))
                spread = self.lse_spread(outputs, inputs)
                if self.lse_spread(self.output_and_lse(inputs), inputs) > spread:
                    self.function.rebind(binding)
            return
        self.function.rebind(before)

    def output_and_lse(self, inputs: Inputs) -> dict[str, np.ndarray] | None:
        """Returns output and log-sum-exp by name, in float64; None if the call raises, or one of them has
        a wrong shape."""
        returned = self.call(inputs)
        if returned is None or not isinstance(returned[0], tuple | list) or len(returned[0]) < 2:
            return None
        (output, lse, *_), prepared = returned
        try:
            arrays = {
                name: swap_heads_and_length(values_of(self.function.backend, array), prepared)
                for name, array in (("output", output), ("lse", lse))
            }
        except WrongAnswer:
            return None
        has_shapes = all(arrays[name].shape == inputs.full_shape(name) for name in arrays)
        return arrays if has_shapes else None

    def lse_spread(self, arrays: dict[str, np.ndarray] | None, inputs: Inputs) -> float:
        """Returns the standard deviation, over all rows, of the log-sum-exp's error; infinity if `arrays`
        is None."""
        if arrays is None:
            return np.inf
        want = Oracle.forward(inputs, self.probe.rounding).expected["lse"].value
        return float(np.std(arrays["lse"] - np.asarray(want, float)))

    def outputs_are_right(self, arrays: dict[str, np.ndarray] | None, inputs: Inputs) -> bool:
        """True if the arrays are right outputs for the inputs; False for None."""
        try:
            Oracle.forward(inputs, self.probe.rounding, "zeros").judge(arrays or {})
        except WrongAnswer:
            return False
        return arrays is not None

    def fit_heads(self, is_native: bool) -> None:
        """Bind `heads`: "shapes" if a call with grouped heads answers, right or wrong; "equal" if it
        raises. If the function is called as the framework's own attention (`is_native`), but lacks the
        parameter for grouped heads, "shapes" is bound only for a right answer."""
        lacks_grouped_heads = self.function.missing(["grouped-heads"]) is not None
        if self.function.axes.lacks_heads or self.function.binder.serving("grouped-heads"):
            return
        before = self.binding
        self.function.rebind(before.but(heads="shapes"))
        inputs = self.probe.draw(GROUPED.format(dt=self.dtype.name))
        needs_right_answer = lacks_grouped_heads and is_native
        if inputs.sizes.Hkv == inputs.sizes.H:
            self.function.rebind(before)
        elif not (self.is_right(inputs) if needs_right_answer else self.output(inputs) is not None):
            self.function.rebind(before if needs_right_answer else before.but(heads="equal"))
        elif not lacks_grouped_heads:
            self.function.rebind(before)

    def has_pattern(self, inputs: Inputs, dense: np.ndarray) -> bool:
        """True if the function gives weights above 0 to exactly the pairs of the mask `dense` (Lq, Lk).
        The size of the weights, which depends on the scale, is ignored. Fully masked rows are skipped."""
        rows, calls = dense.any(-1), one_hot_inputs(inputs, MOST_CALLS)
        for keys, one_hots in calls:
            got = self.output(one_hots)
            if got is None or got.shape != one_hots.full_shape("output"):
                return False
            has_weight = got[..., rows, : keys.stop - keys.start] > 0
            if (has_weight != dense[rows, keys]).any():
                return False
        return bool(calls)

    def fit_window(self) -> None:
        """Bind the alignment of windows. By default the window of query i is around key i. It is around
        key i + Lk - Lq (`window="last"`) if that fits the weights, or else if the causal flag is
        bottom-right."""
        names = [word for word in WINDOWS if self.function.binder.name_of(word)]
        right = None if names == ["window_left"] else RIGHT
        window = Window(LEFT, right)
        inputs = self.plain_inputs().replace(mask=window)
        if not names or self.function.refuses(inputs):
            return
        offset = inputs.sizes.Lk - inputs.sizes.Lq
        last_window = Window(LEFT - offset, None if right is None else right + offset).dense(
            inputs.sizes
        )
        if self.has_pattern(inputs, window.dense(inputs.sizes)):
            return
        if self.has_pattern(inputs, last_window) or self.binding.causal == "bottom-right":
            self.function.rebind(self.binding.but(window="last"))

    def fit_causal(self) -> None:
        """Bind the alignment of the causal flag, for reports: "top-left" or "bottom-right"."""
        inputs = self.plain_inputs().replace(mask=Causal(), form="flag")
        if not self.function.binder.name_of("is_causal") or self.function.refuses(inputs):
            return
        for mask, name in ((Causal(), "top-left"), (Causal(bottom_right=True), "bottom-right")):
            if self.has_pattern(inputs, mask.dense(inputs.sizes)):
                self.function.rebind(self.binding.but(causal=name))
                return

    def advice_on_masks(self, is_native: bool) -> tuple[str, tuple[str, ...]]:
        """Returns a sentence that advises a claim, and the features that fail without the claim;
        `NO_ADVICE` if no claim helps. A claim helps if the mask parameter is wrong with booleans and
        right with another kind of mask (`MASK_KINDS`). The claim is only advised, because the other kind
        may be a fault. If `is_native`, the only advice is that numbers have no effect."""
        names = [n for n in map(self.function.binder.name_of, MASK_WORDS) if n]
        inputs = self.plain_inputs("bool.qk")
        if not names or self.binding.masks or self.function.refuses(inputs):
            return NO_ADVICE
        if self.is_right(inputs):
            return self.advice_on_biases(names[-1], is_native)
        for kind, form in () if is_native else MASK_KINDS.items():
            if self.is_right_with(inputs, masks=kind):
                text = f"The parameter {names[-1]!r} takes booleans wrong, and is right if {form}."
                bias_features = () if self.takes_biases(names[-1]) else ADDING
                return f"{text} If it shall, claim masks={kind}.", HIDING + bias_features
        return NO_ADVICE

    def takes_biases(self, name: str) -> bool:
        """True if the function is right with a bias in the parameter of this name, or gets no biases in
        this parameter."""
        inputs = self.probe.draw(BIASED.format(dt=self.dtype.name))
        return name not in self.function.binder.serving("bias") or self.is_right(inputs)

    def advice_on_biases(self, name: str, is_native: bool) -> tuple[str, tuple[str, ...]]:
        """Returns advice if the parameter of this name is right with booleans and wrong with biases; else
        `NO_ADVICE`. `is_native` as in `advice_on_masks`."""
        if self.takes_biases(name):
            return NO_ADVICE
        inputs = self.probe.draw(BIASED.format(dt=self.dtype.name))
        biased, unbiased = self.output(inputs), self.output(inputs.replace(bias=None))
        equal = biased is not None and unbiased is not None and (biased == unbiased).all()
        if is_native and not equal:
            return NO_ADVICE
        effect = "no effect" if equal else "another effect than a bias that is added to the scores"
        text = (
            f"The parameter {name!r} takes boolean masks right; numbers in it have {effect}. "
            "If it is for booleans alone, claim masks=boolean."
        )
        return text, ADDING
