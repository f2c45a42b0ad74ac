"""Miniatures: tiny deliberately broken backends that the harness must tell apart.

Each is the control with one lie; `tests/test_statuses.py` says in which status it must end.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends._numpy.attention import Definition
from attention_conformance.backends._numpy.backend import NumpyBackend
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.dtypes import DType
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


class BrokenAdapter(Miniature):
    """The adapter itself breaks, before the framework is called."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        raise KeyError("adapter bug")


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

    def machine_limit(self, what: str, size: int, dtype: DType) -> tuple[Callable[[], object], int]:
        """Large products take seconds on a busy machine, and no test of miniatures is about them."""
        return lambda: None, size


def backend_of(*kinds: type[Miniature]) -> Callable[[str], Miniatures]:
    """A backend factory, as `--backend=module:object` takes it."""
    return lambda device: Miniatures(device, *kinds)


always_wrong = backend_of(AlwaysWrong)
one_wrong = backend_of(Miniature, AlwaysWrong)
