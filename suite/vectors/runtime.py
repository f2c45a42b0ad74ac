"""A runtime that answered in files, as a backend: its implementations return the stored answers.

An implementation is one operator of the runtime. It finds the answer by the digest of the inputs. Only
checks that need a single answer per case judge it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import NumpyEngine, Rounded
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge import elections
from attention_conformance.suite.judge.verdict import Deviation, HarnessError, NotApplicable
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.dtypes import DTYPES, DType
from attention_conformance.suite.spec.elections import QUESTIONS, ElectionCase
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.vectors.answers import Answers
from attention_conformance.suite.vectors.asked import ALL, StoredProblem, operands, operators
from attention_conformance.suite.vectors.index import Entry
from attention_conformance.suite.vectors.tensors import NoTensors, Tensor

ASSUMED = ("subnormal-output", "score-overflow", "no-keys", "value-size")
"""Questions that have their first answer if the runtime answers no probe of them. Cells that depend on
another unanswered question are unsupported."""

BIAS = "grad.bias"

WIDER = {"f64": ("f64",), "f32": ("f32", "f64")}
"""Valid dtypes of answers by the case's dtype, short names. Cases in 16 bits have those of float32 and
their own."""

Answered = Mapping[str, Tensor]
"""The tensors of an answer by name."""

Arrays = dict[str, np.ndarray]

Shape = tuple[int, ...]

Names = dict[tuple[bytes, bool], str]
"""Case ids by (digest of the inputs, differentiated)."""


class StoredBackend(NumpyEngine):
    """A runtime that answered in files. Raises DeclarationError for invalid declarations."""

    def __init__(
        self, answers: Answers, problems: Sequence[StoredProblem], said: Mapping[str, Any]
    ) -> None:
        self.name, self.answers, self.problems = answers.runtime.name, answers, problems
        self.claims = Claims.of(None, said)
        super().__init__()
        self.memory.has_strides = False

    @property
    def versions(self) -> dict[str, str]:
        return {self.name: self.answers.runtime.version}

    @property
    def expectations(self) -> Path:
        """NAME.toml beside the answers."""
        return self.answers.folder / f"{self.name}.toml"

    def implementations(self) -> list[Implementation]:
        names = {one.case.operator.name for one in self.problems}
        return [Stored(self, operator) for operator in operators(names)]


class Stored(Implementation):
    """One operator of a runtime that answered in files."""

    backend: StoredBackend

    def __init__(self, backend: StoredBackend, operator: Operator) -> None:
        self.operator = operator
        self.problems = {one.id: one for one in backend.problems if one.case.operator is operator}
        self.answers = backend.answers
        self.entries = {entry.case: entry for entry in self.answers.index.cases}
        claims, runtime = backend.claims, self.answers.runtime
        declared = claims.declared(
            ALL.features - set(self._lacking(claims)),
            refusals=self._lacking(claims),
            merges_mask_into_bias=runtime.merges_mask_into_bias,
        )
        super().__init__(backend, operator.name, declared)

    def _lacking(self, claims: Claims) -> dict[str, str]:
        """The features that no answer of the runtime shows, with the reason."""
        lacking = {}
        flags = any(self.entries[name].flag for name in self._answered())
        if not flags and "causal-alignment" not in claims.elections:
            lacking["native-causal"] = "no question of the causal flag is answered"
        biased = [name for name in self._answered() if BIAS in self.entries[name].answers]
        if not any(BIAS in self._tensors(name) for name in biased):
            lacking["gradient-of-bias"] = "no answer has the gradient of a bias"
        return lacking

    def _answered(self) -> list[str]:
        return [name for name in self.problems if name in self.answers.files]

    def _tensors(self, name: str) -> Answered:
        try:
            return self.answers.read(name)
        except NoTensors:
            return {}

    # Supported cases.

    def unsupported(self, case: AnyCase) -> str | None:
        entry = self.entries.get(case.id)
        if entry is None:
            return "no case of these vectors"
        if case.id not in self.answers.files:
            return self.answers.reason(entry)
        return super().unsupported(case)

    def refuses(self, inputs: Inputs) -> str | None:
        """The reason why a probe has no answer, or None. Only probes call this method."""
        both = ((inputs.digest, backward) for backward in (False, True))
        names = [self._probes[key] for key in both if key in self._probes]
        if any(name in self.answers.files for name in names):
            return None
        return f"no answer to {' or '.join(names) or 'this probe'}"

    def nearest_supported(self, case: AnyCase) -> Case | None:
        """None: files answer no other case in place of this one."""
        return None

    def elected(self, question: str, dtype: DType) -> str | None:
        """The answer to a question, the first that applies:

        - the declared answer
        - None, to observe it, if the runtime answered the question's probe in this dtype
        - the answer that the runtime gave in another dtype
        - the first answer, if the question is in `ASSUMED`
        """
        declared = super().elected(question, dtype)
        probes = {
            one.case.dtype.name
            for one in self.problems.values()
            if isinstance(one.case, ElectionCase) and one.case.question.name == question
            if one.id in self.answers.files
        }
        if declared is not None or dtype.name in probes:
            return declared
        if probes and QUESTIONS[question].one_answer:
            other = next(name for name in QUESTIONS[question].dtypes if name in probes)
            return elections.observe(question, self, DTYPES[other])
        return QUESTIONS[question].canonical if question in ASSUMED else None

    # Answers.

    @cached_property
    def _probes(self) -> Names:
        """The election probes in the vectors."""
        probes = (one for one in self.problems.values() if isinstance(one.case, ElectionCase))
        return {(one.inputs().digest, one.differentiated): one.id for one in probes}

    @cached_property
    def _cases(self) -> Names:
        """The cases in the vectors, with causal masks aligned as the runtime's causal flag."""
        names: Names = {}
        for one in self.problems.values():
            if not isinstance(one.case, ElectionCase):
                digest = elections.aligned(one.inputs(), self).digest
                names |= {(digest, backward): one.id for backward in (False, one.differentiated)}
        return names

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self._forward(inputs, self._cases)

    def prepare_fresh(self, inputs: Inputs) -> PreparedCall:
        """The answer to a probe, even if a case has the same inputs."""
        return self._forward(inputs, self._probes)

    def differentiable(self, inputs: Inputs) -> PreparedCall:
        return self._backward(inputs, self._cases)

    def differentiable_fresh(self, inputs: Inputs) -> PreparedCall:
        """The answer to a probe."""
        return self._backward(inputs, self._probes)

    def _forward(self, inputs: Inputs, named: Names) -> PreparedCall:
        _, tensors = self._stored(inputs, named.get((inputs.digest, False)))
        names = tuple(inputs.operator.outputs(inputs.case))
        if missing := [name for name in names[1:] if name not in tensors]:
            raise NotApplicable(f"the answer has no {missing[0]}")
        values = [self._output(name, tensors, inputs) for name in names]
        native = values[0] if len(values) == 1 else tuple(values)
        return self._call(inputs, operands(inputs), native, names)

    def _backward(self, inputs: Inputs, named: Names) -> PreparedCall:
        entry, tensors = self._stored(inputs, named.get((inputs.digest, True)))
        names = [name for name in entry.answers if name.startswith("grad.")]
        if not any(name in tensors for name in names):
            raise NotApplicable("the answer has no gradients")
        output = self._output("output", tensors, inputs) if "output" in entry.answers else None
        shapes = {name: operands(inputs)[name[5:]].shape for name in names}
        if BIAS in shapes and BIAS in tensors:
            shapes[BIAS] = _written_out(shapes[BIAS], tensors[BIAS].shape, inputs)
        gradients = {
            name[5:]: self._read(name, tensors[name], shapes[name], inputs.dtype)
            for name in names
            if name in tensors
        }
        want = self.problems[entry.case].cotangent()

        def vjp(cotangent: Rounded, wrt: Sequence[str], **_: Any) -> dict[str, Any]:
            if want is None or not np.array_equal(cotangent.values.ravel(), want.ravel()):
                raise HarnessError(
                    f"{entry.case} is differentiated with a cotangent that the vectors do not have"
                )
            return {name: gradients.get(name) for name in wrt}

        arrays = operands(inputs)
        if BIAS in shapes:
            arrays["bias"] = np.broadcast_to(arrays["bias"], shapes[BIAS])
        return self._call(inputs, arrays, output, ("output",), vjp=vjp)

    def _call(
        self, inputs: Inputs, arrays: Arrays, native: Any, names: tuple[str, ...], **more: Any
    ) -> PreparedCall:
        arguments = {
            name: self.backend.array(array, inputs.dtype) for name, array in arrays.items()
        }
        return PreparedCall(lambda **_: native, arguments, names, **more)

    def _stored(self, inputs: Inputs, name: str | None) -> tuple[Entry, Answered]:
        """The entry and the answer of the case `name`.

        Raises NotApplicable if there is no answer, and Deviation "type" if the answer cannot be read or
        has tensors that the entry does not ask for.
        """
        if name is None:
            raise HarnessError(f"the vectors do not have this variation of {inputs.case.id}")
        entry = self.entries[name]
        if name not in self.answers.files:
            raise NotApplicable(f"no answer to {name}")
        try:
            tensors = self.answers.read(name)
        except NoTensors as error:
            raise Deviation("type", f"{entry.file} is no safetensors file: {error}") from error
        if unknown := sorted(set(tensors) - set(entry.answers)):
            raise Deviation(
                "type",
                f"the tensor {unknown[0]!r} is not asked for; asked are {', '.join(entry.answers)}",
            )
        if "output" in entry.answers and "output" not in tensors:
            got = ", ".join(sorted(tensors)) or "nothing"
            raise Deviation("type", f"the answer has no tensor 'output'; it has {got}")
        return entry, tensors

    def _output(self, name: str, tensors: Answered, inputs: Inputs) -> Rounded:
        fmt, shape = inputs.output_dtype(name), inputs.full_shape(name)
        read = self._read(name, tensors[name], shape, fmt)
        return Rounded(read.values.reshape(inputs.output_shape(name)), fmt)

    def _read(self, name: str, tensor: Tensor, shape: tuple[int, ...], fmt: DType) -> Rounded:
        """The values of a tensor in the format `fmt`.

        Raises Deviation "dtype" for a narrower dtype, and "shape" for another shape.
        """
        own = "" if tensor.dtype is None else tensor.dtype.name
        if own not in (fmt.name, *WIDER.get(fmt.name, WIDER["f32"])):
            raise Deviation(
                "dtype",
                f"expected dtype {fmt.long_name} or a wider one of {name}, got {tensor.type}",
            )
        if tensor.shape != shape:
            raise Deviation("shape", f"expected shape {shape} of {name}, got {tensor.shape}")
        assert tensor.values is not None
        return Rounded(tensor.values.astype(np.float64), fmt)


def _written_out(shape: Shape, other: Shape, inputs: Inputs) -> Shape:
    """`other` if it is `shape` with more broadcast axes expanded (as in a bias with a merged mask); else
    `shape`."""
    s = inputs.sizes
    sizes = zip(shape, other, (s.B, s.H, s.Lq, s.Lk), strict=False)
    fits = len(other) == len(shape) and all(got in (own, whole) for own, got, whole in sizes)
    return other if fits else shape
