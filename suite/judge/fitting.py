"""Find how a person's function is called, by trial calls.

The names of parameters tell what is passed (`backends.user.signature`). Calls on small inputs, whose
sizes are pairwise distinct, tell the rest: axes, kinds of masks, what comes back beside the output, and
where a window counts from. What asks a function less, or may be its fault, is advised and not bound: that
takes a claim.
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
from attention_conformance.suite.judge.diagnosis.instrument import MOST_CALLS, one_hot
from attention_conformance.suite.judge.elections.probe import Probe
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.judge.verdict import Deviation
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

Calling = Callable[[Case], AbstractContextManager[None]]
"""Makes the context in which the function is called on a case; the context may raise TimeOver."""

BIASED = "sdpa/none/mha/{dt}/b2h3q5k7d8/bias.qk"
GROUPED = "sdpa/none/gqa2/{dt}/b2h4q5k7d8"
COMMON = "sdpa/none/mha/{dt}/b2h4q16k32d64"
"""Sizes that most kernels accept. With as many keys as queries a function without an axis of samples
would answer, since it could take rows for samples."""

WINDOWS = ("window", "window_left")
LEFT, RIGHT = 3, 1
NO_ADVICE = ("", ())

TAKEN = {
    "hides": "True hides a key",
    "binary_hides": "it is given the numbers 1, which hides a key, and 0",
    "additive": "it is given 0 and -inf, which are added to the scores",
    "binary": "it is given the numbers 1, which attends, and 0",
}
"""What a parameter for a mask may take instead of booleans, by the claim `masks`."""


def fit(function: Implementation, calling: Calling = lambda case: nullcontext()) -> None:
    """Bind a user's function of plain attention as trial calls show; a function that makes a forbidden
    call stays as it is. Raises what `calling` raises."""
    if hasattr(function, "rebind"):
        with suppress(ForbiddenCall):
            function.advice = Fitting(function, calling).fit()


class Fitting:
    """The trial calls of one function."""

    def __init__(self, function: Any, calling: Calling) -> None:
        self.function, self.calling = function, calling
        names = function.declared.dtypes
        self.dtype = DTYPES["f32" if "f32" in names else names[0]]
        self.probe = Probe(function, self.dtype)

    def fit(self) -> tuple[str, tuple[str, ...]]:
        """Find one thing after the other, each with what was found before. Returns advice."""
        right = self.fits_axes()
        if not right and self.output(self.plain()) is None:
            return NO_ADVICE
        native = self.is_native
        self.fit_heads(native)
        if not native or any(map(self.function.binder.name_of, WINDOWS)):
            self.fit_causal()
            self.fit_window()
        if not native:
            self.fit_lse()
        return self.advice_on_masks(native) if right else NO_ADVICE

    @property
    def binding(self) -> Binding:
        return self.function.binding

    @property
    def is_native(self) -> bool:
        """True if the function is called as the framework's own attention."""
        return not self.function.binder.bound and self.binding.but(causal="") == Binding()

    def called(self, inputs: Inputs) -> tuple[Any, PreparedCall] | None:
        """What the function returns for the inputs, and the call; None if it raises."""
        prepared = self.function.prepare(inputs)
        try:
            with self.calling(inputs.case):
                return prepared(), prepared
        except (*ENDS, ForbiddenCall):
            raise
        except BaseException:
            return None

    def values(self, array: Any, prepared: PreparedCall) -> np.ndarray | None:
        """The values of an output of four axes as (B, H, L, D); None for anything else."""
        try:
            values = values_of(self.function.backend, array)
        except Deviation:
            return None
        return swap_heads_and_length(values, prepared) if values.ndim == 4 else None

    def output(self, inputs: Inputs) -> np.ndarray | None:
        """The values (B, H, L, D) of what the function returns for the inputs; None if it raises, or
        returns no array with four axes."""
        answer = self.called(inputs)
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
        """True if the function would be right with a changed binding; it keeps its own."""
        before = self.binding
        self.function.rebind(before.but(**changes))
        right = self.is_right(inputs)
        self.function.rebind(before)
        return right

    def plain(self, mask: str = "none") -> Inputs:
        return self.probe.inputs(mask)

    # Axes, and what is returned.

    def axes(self) -> Iterator[str]:
        """The axes to try, the most probable first; "" for those of the framework's own attention."""
        if self.binding.axes:
            yield self.binding.axes
            return
        native = self.function.native.axis_order
        order = LAYOUTS.get(self.function.binder.layout) or dict.fromkeys((native, *AXES))
        yield from ("" if axes == native else axes for axes in order)

    def fits_axes(self) -> bool:
        """Bind axes, and the kind of a returned pair; True if an answer was right. Without a right answer
        the first axes with an output of the right shape are bound."""
        first, shaped, answered = self.binding, None, None
        takes_all: bool | None = None
        for axes in self.axes():
            if self.lacks_axes(axes):
                if takes_all is None:
                    takes_all = bool(shaped) or self.takes_all_axes(first)
                if takes_all:
                    break  # what is wrong is the answer, or the size of an axis
            self.function.rebind(first.but(axes=axes))
            inputs = self.plain()
            answer = self.called(inputs)
            if answer is None:
                continue
            native, prepared = answer
            pair = isinstance(native, tuple | list) and len(native) > 1
            values = self.values(native[0] if pair else native, prepared)
            if values is None:
                continue
            found = first.but(axes=axes, returns=self.beside(native[1], inputs) if pair else "")
            if self.transposes and not first.output_axes:
                found = found.but(output_axes=self.other_order(axes))
                values = values.swapaxes(1, 2)
            answered = answered or found
            if values.shape != inputs.full_shape("output"):
                continue
            shaped = shaped or found
            if self.probe.matches(values, inputs):
                self.function.rebind(found)
                return True
        self.function.rebind(shaped or answered or first)
        return False

    def takes_all_axes(self, first: Binding) -> bool:
        """True if the function answers operands with four axes in other sizes."""
        if first.axes:
            return False
        self.function.rebind(first)
        inputs = self.probe.drawn(COMMON.format(dt=self.dtype.name))
        for axes in [axes for axes in self.axes() if not self.lacks_axes(axes)]:
            self.function.rebind(first.but(axes=axes))
            if self.called(inputs) is not None:
                return True
        return False

    def lacks_axes(self, axes: str) -> bool:
        """True if these axes are not all four."""
        return bool(AXES[axes or self.function.native.axis_order].index)

    @property
    def transposes(self) -> bool:
        """True if the signature is one whose functions exchange heads and rows of the output: that of
        transformers, which begins with the module. Of any other function this may be a fault."""
        return bool(self.function.binder.name_of("module"))

    def other_order(self, axes: str) -> str:
        """The order that heads and rows do not have in these axes."""
        own = AXES[axes or self.function.native.axis_order].order
        return "blhd" if own == "bhld" else "bhld"

    def beside(self, array: Any, inputs: Inputs) -> str:
        """What stands beside the output: "weights", "lse", "None"; "" if nobody knows."""
        if array is None:
            return "None"
        sizes, shape = inputs.sizes, tuple(getattr(array, "shape", ()))
        if shape[-2:] == (sizes.Lq, sizes.Lk):
            return "weights"
        rows = sizes.B * sizes.H * sizes.Lq
        return "lse" if shape and int(np.prod(shape)) == rows else ""

    def fit_lse(self) -> None:
        """Bind the axes of the log-sum-exp, which its shape tells, and the base 2 for the signature of
        FlashInfer, if it is nearer. Of any other function the base may be a fault."""
        inputs = self.plain().replace(lse=True)
        if self.function.refuses(inputs):
            return
        first = self.binding
        for axes in ("", self.other_order(first.axes)[:3]):
            bound = first.but(lse_axes=axes)
            self.function.rebind(bound)
            arrays = self.with_lse(inputs)
            if arrays is None:
                continue
            base_2 = self.function.binder.layout in LAYOUTS and not first.lse_base
            if base_2 and not self.judges(arrays, inputs):
                self.function.rebind(bound.but(lse_base="2"))
                if self.spread(self.with_lse(inputs), inputs) > self.spread(arrays, inputs):
                    self.function.rebind(bound)
            return
        self.function.rebind(first)

    def with_lse(self, inputs: Inputs) -> dict[str, np.ndarray] | None:
        """Output and log-sum-exp by name; None unless both have the right shape."""
        answer = self.called(inputs)
        if answer is None or not isinstance(answer[0], tuple | list) or len(answer[0]) < 2:
            return None
        (output, lse, *_), prepared = answer
        try:
            arrays = {
                name: swap_heads_and_length(values_of(self.function.backend, array), prepared)
                for name, array in (("output", output), ("lse", lse))
            }
        except Deviation:
            return None
        fits = all(arrays[name].shape == inputs.full_shape(name) for name in arrays)
        return arrays if fits else None

    def spread(self, arrays: dict[str, np.ndarray] | None, inputs: Inputs) -> float:
        """How much the error of the log-sum-exp varies from row to row."""
        if arrays is None:
            return np.inf
        want = Oracle.forward(inputs, self.probe.rounding).expected["lse"].value
        return float(np.std(arrays["lse"] - np.asarray(want, float)))

    def judges(self, arrays: dict[str, np.ndarray] | None, inputs: Inputs) -> bool:
        """True if arrays are right outputs."""
        try:
            Oracle.forward(inputs, self.probe.rounding, "zeros").judge(arrays or {})
        except Deviation:
            return False
        return arrays is not None

    def fit_heads(self, native: bool) -> None:
        """Bind grouped heads by their shapes if a call with them answers, right or wrong, and that they
        are not taken if it raises. A `native` signature without the framework's parameter for grouped
        heads takes them only if the answer is right."""
        lacking = self.function.missing(["grouped-heads"]) is not None
        if self.function.axes.heads or self.function.binder.serving("grouped-heads"):
            return
        first = self.binding
        self.function.rebind(first.but(heads="shapes"))
        inputs = self.probe.drawn(GROUPED.format(dt=self.dtype.name))
        unsaid = lacking and native
        if inputs.sizes.Hkv == inputs.sizes.H:
            self.function.rebind(first)
        elif not (self.is_right(inputs) if unsaid else self.output(inputs) is not None):
            self.function.rebind(first if unsaid else first.but(heads="equal"))
        elif not lacking:
            self.function.rebind(first)

    def attends(self, inputs: Inputs, dense: np.ndarray) -> bool:
        """True if exactly the keys of a mask (Lq, Lk) have weights, whatever the scale."""
        rows, calls = dense.any(-1), one_hot(inputs, MOST_CALLS)
        for keys, one_hots in calls:
            got = self.output(one_hots)
            if got is None or got.shape != one_hots.full_shape("output"):
                return False
            seen = got[..., rows, : keys.stop - keys.start] > 0
            if (seen != dense[rows, keys]).any():
                return False
        return bool(calls)

    def fit_window(self) -> None:
        """Bind where a window counts from; as the causal flag does, if it is no known place."""
        names = [word for word in WINDOWS if self.function.binder.name_of(word)]
        right = None if names == ["window_left"] else RIGHT
        window = Window(LEFT, right)
        inputs = self.plain().replace(mask=window)
        if not names or self.function.refuses(inputs):
            return
        by = inputs.sizes.Lk - inputs.sizes.Lq
        last = Window(LEFT - by, None if right is None else right + by).dense(inputs.sizes)
        if self.attends(inputs, window.dense(inputs.sizes)):
            return
        if self.attends(inputs, last) or self.binding.causal == "bottom-right":
            self.function.rebind(self.binding.but(window="last"))

    def fit_causal(self) -> None:
        """Bind the alignment of the causal flag, for people."""
        inputs = self.plain().replace(mask=Causal(), form="flag")
        if not self.function.binder.name_of("is_causal") or self.function.refuses(inputs):
            return
        for mask, name in ((Causal(), "top-left"), (Causal(bottom_right=True), "bottom-right")):
            if self.attends(inputs, mask.dense(inputs.sizes)):
                self.function.rebind(self.binding.but(causal=name))
                return

    def advice_on_masks(self, native: bool) -> tuple[str, tuple[str, ...]]:
        """What to claim if a parameter for a mask is not given what it takes, with the features that fail
        without the claim. Nothing is bound here: what a parameter does may be a fault. A function that is
        called as the framework's own is only told that numbers have no effect: else it is wrong."""
        names = [n for n in map(self.function.binder.name_of, MASK_WORDS) if n]
        inputs = self.plain("bool.qk")
        if not names or self.binding.masks or self.function.refuses(inputs):
            return NO_ADVICE
        if self.is_right(inputs):
            return self.advice_on_biases(names[-1], native)
        for kind, what in () if native else TAKEN.items():
            if self.is_right_with(inputs, masks=kind):
                text = f"The parameter {names[-1]!r} takes booleans wrong, and is right if {what}."
                adding = () if self.takes_biases(names[-1]) else ADDING
                return f"{text} If it shall, claim masks={kind}.", HIDING + adding
        return NO_ADVICE

    def takes_biases(self, name: str) -> bool:
        """True unless the parameter of this name is given biases, and their answers are wrong."""
        biased = self.probe.drawn(BIASED.format(dt=self.dtype.name))
        return name not in self.function.binder.serving("bias") or self.is_right(biased)

    def advice_on_biases(self, name: str, native: bool) -> tuple[str, tuple[str, ...]]:
        """What to claim if the parameter of this name takes no biases."""
        if self.takes_biases(name):
            return NO_ADVICE
        biased = self.probe.drawn(BIASED.format(dt=self.dtype.name))
        with_bias, without = self.output(biased), self.output(biased.replace(bias=None))
        same = with_bias is not None and without is not None and (with_bias == without).all()
        if native and not same:
            return NO_ADVICE
        effect = "no effect" if same else "another effect than a bias that is added to the scores"
        text = (
            f"The parameter {name!r} takes boolean masks right; numbers in it have {effect}. "
            "If it is for booleans alone, claim masks=boolean."
        )
        return text, ADDING
