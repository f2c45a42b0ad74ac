"""Miniatures: tiny deliberately broken backends that the harness must tell apart.

Each is the control with one lie; `tests/test_statuses.py` says in which status it must end.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends._numpy.attention import Definition
from attention_conformance.backends._numpy.backend import NumpyBackend
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs


class Miniature(Definition):
    """The control, with `answer` between its output and the suite."""

    declared = Definition.declared.refusing({"lse": "a miniature has one output"})

    def __init__(self, backend: NumpyBackend) -> None:
        super().__init__(backend, type(self).__name__.lower())

    def answer(self, out: Rounded) -> object:
        return out

    def prepare(self, inputs: Inputs) -> PreparedCall:
        plain = super().prepare(inputs)
        inner = plain.function

        def call(**arguments: object) -> object:
            return self.answer(inner(**arguments))

        return PreparedCall(call, plain.arguments)


class AlwaysWrong(Miniature):
    """Answers 42 everywhere."""

    def answer(self, out: Rounded) -> Rounded:
        return Rounded(np.full_like(out.values, 42.0), out.fmt)


class WrongDtype(Miniature):
    """Computes rightly and calls the result float64."""

    def answer(self, out: Rounded) -> Rounded:
        return Rounded(out.values, DTYPES["f64"])


class WrongShape(Miniature):
    """Returns (B, Lq, H, Dv) under the name of (B, H, Lq, Dv)."""

    def answer(self, out: Rounded) -> Rounded:
        return Rounded(out.values.swapaxes(1, 2), out.fmt)


class WrongArray(Miniature):
    """Returns a plain NumPy array instead of the backend's own."""

    def answer(self, out: Rounded) -> np.ndarray:
        return out.values


class WrongDevice(Miniature):
    """Its arrays claim another device than the one asked for."""

    def answer(self, out: Rounded) -> Rounded:
        elsewhere = Rounded(out.values, out.fmt)
        elsewhere.device = "elsewhere"
        return elsewhere


class ClaimsTooMuch(Miniature):
    """Raises where there is a mask, and does not declare it."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        plain = super().prepare(inputs)
        if inputs.dense_mask is None:
            return plain

        def refuse(**arguments: object) -> object:
            raise NotImplementedError("no masks here\nsecond line")

        return PreparedCall(refuse, plain.arguments)


class ClaimsTooLittle(Miniature):
    """Declares masks unsupported, and computes them rightly all the same."""

    def unsupported(self, case: AnyCase) -> str | None:
        needs = {"mask", "causal", "window", "padding"} & set(case.needs)
        reason = "masks are said not to be supported" if needs else None
        return reason or super().unsupported(case)


class RefusesEverything(Miniature):
    """Declares everything unsupported: nothing is wrong, and nothing is right."""

    def unsupported(self, case: AnyCase) -> str | None:
        return "nothing is supported"


class BrokenAdapter(Miniature):
    """The adapter itself breaks, before the framework is called."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        raise KeyError("adapter bug")


class Mutates(Miniature):
    """Doubles its query after answering."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        plain = super().prepare(inputs)
        inner = plain.function

        def call(**arguments: Rounded) -> object:
            out = inner(**arguments)
            arguments["query"].values *= 2
            return out

        return PreparedCall(call, plain.arguments)


class Unsteady(Miniature):
    """Adds one unit roundoff to every second answer."""

    calls = 0

    def answer(self, out: Rounded) -> Rounded:
        self.calls += 1
        factor = 1 + 2.0**-24 * (self.calls % 2)
        return Rounded(out.values * factor, out.fmt)


class Segfaults(Miniature):
    """Kills its own process on cases of 17 keys, as a segmentation fault does."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        plain = super().prepare(inputs)

        def die(**arguments: object) -> object:
            os.kill(os.getpid(), signal.SIGKILL)
            return None

        return PreparedCall(die, plain.arguments) if inputs.sizes.Lk == 17 else plain


class Hangs(Miniature):
    """Never answers on cases of 17 keys."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        plain = super().prepare(inputs)

        def hang(**arguments: object) -> object:
            time.sleep(600)
            return None

        return PreparedCall(hang, plain.arguments) if inputs.sizes.Lk == 17 else plain


class Miniatures(NumpyBackend):
    """A third-party backend made of miniatures."""

    name = "mini"

    def __init__(self, device: str = "cpu", *kinds: type[Miniature]) -> None:
        super().__init__(device)
        self.kinds = kinds

    def implementations(self) -> list[Implementation]:
        return [kind(self) for kind in self.kinds]

    def device_name(self, array: Rounded) -> str:
        return getattr(array, "device", "cpu")


def backend_of(*kinds: type[Miniature]) -> Callable[[str], Miniatures]:
    """A backend factory, as `--backend=module:object` takes it."""
    return lambda device: Miniatures(device, *kinds)


broken = backend_of(
    AlwaysWrong, WrongDtype, WrongShape, WrongArray, WrongDevice, ClaimsTooMuch, ClaimsTooLittle,
    RefusesEverything, BrokenAdapter, Mutates, Unsteady,
)  # fmt: skip
refuses = backend_of(RefusesEverything)
always_wrong = backend_of(AlwaysWrong)
segfaults = backend_of(Segfaults)
hangs = backend_of(Hangs)
