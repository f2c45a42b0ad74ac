"""A runtime that answered in files, as a backend. It has one implementation per operator, which returns
the stored answers by the digest of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import NumpyEngine, Rounded
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.declared import OF_BACKENDS
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge.verdict import HarnessError, NotApplicable, WrongAnswer
from attention_conformance.suite.records.files import require_regular_file
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.elections import QUESTIONS
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.operators import OPERATORS, WORDS
from attention_conformance.suite.spec.text import did_you_mean
from attention_conformance.suite.spec.vocabulary import REGISTERED
from attention_conformance.suite.vectors import files
from attention_conformance.suite.vectors.asked import StoredCase, operands
from attention_conformance.suite.vectors.files import Index, Runtime, VectorsError

FEATURES = frozenset(WORDS) - OF_BACKENDS - {"dropout", REGISTERED, "native-causal"}
"""The features of cases that files store: no memory layouts, threads, flags, dropout, registration."""

ASSUMED_QUESTIONS = ("subnormal-output", "score-overflow", "no-keys", "value-size")
"""Questions that have their first answer if the runtime declares none. Cells that depend on another
undeclared question are unsupported."""


class StoredBackend(NumpyEngine):
    """A runtime that answered in files. The constructor raises VectorsError if the answers are to other
    vectors or to unknown cases, and UsageError for invalid declarations."""

    def __init__(self, folder: Path, index: Index, problems: Sequence[StoredCase]) -> None:
        self.folder, path = folder, folder / files.RUNTIME
        self.runtime = files.read(path, Runtime, 'expected at least {"name": ..., "version": ...}')
        if self.runtime.vectors not in ("", index.digest):
            raise VectorsError(
                f"{path}: expected answers to the vectors {index.digest[:12]}..., got answers to "
                f"{self.runtime.vectors[:12]}...: judge them by the latter"
            )
        by_file = {problem.file: problem for problem in problems}
        names = {answer_path.name for answer_path in folder.glob(f"*{files.SUFFIX}")}
        for name in sorted(names - by_file.keys()):
            raise VectorsError(
                f"{folder / name} answers no case: name an answer like the `file` of its case"
                f"{did_you_mean(name, by_file)}"
            )
        self.files = {by_file[name].case.id: folder / name for name in names}
        self.answered = {by_file[name].inputs().digest: by_file[name] for name in names}
        self.operators = {problem.case.operator.name for problem in problems}
        declarations = {"numerics": self.runtime.numerics, "elections": self.runtime.elections}
        self.name, self.claims = self.runtime.name, Claims.of(None, declarations)
        super().__init__()

    @property
    def versions(self) -> dict[str, str]:
        return {self.name: self.runtime.version}

    @property
    def expectations(self) -> Path:
        """The manifest of expected failures: NAME.toml in the folder of the answers."""
        return self.folder / f"{self.name}.toml"

    def implementations(self) -> list[Implementation]:
        return [Stored(self, one) for name, one in OPERATORS.items() if name in self.operators]


class Stored(Implementation):
    """One operator of a runtime that answered in files."""

    backend: StoredBackend

    def __init__(self, backend: StoredBackend, operator: Operator) -> None:
        self.operator, runtime = operator, backend.runtime
        refusals = {name: reason for name, reason in runtime.unsupported.items() if name in WORDS}
        merges = runtime.merges_mask_into_bias
        declared = backend.claims.declared(
            FEATURES - {*refusals}, refusals=refusals, merges_mask_into_bias=merges
        )
        super().__init__(backend, operator.name, declared)

    def unsupported(self, case: AnyCase) -> str | None:
        reasons = self.backend.runtime.unsupported.items()
        if case.id not in self.backend.files:
            named = (reason for pattern, reason in reasons if fnmatchcase(case.id, pattern))
            return next(named, "no answer")
        return super().unsupported(case)

    def refuses(self, inputs: Inputs) -> str | None:
        """Returns the reason why files cannot answer the probe of an election question."""
        return "files answer no questions: declare `elections` in runtime.json"

    def nearest_supported(self, case: AnyCase) -> Case | None:
        """Returns None: files have answers to the stored cases only."""
        return None

    def declared_answer(self, question: str, dtype: DType) -> str | None:
        """Returns the declared answer, or the first one of a question in `ASSUMED_QUESTIONS`."""
        assumed = QUESTIONS[question].canonical if question in ASSUMED_QUESTIONS else None
        return super().declared_answer(question, dtype) or assumed

    def prepare(self, inputs: Inputs) -> PreparedCall:
        values, names = self._answer(inputs), tuple(inputs.operator.outputs(inputs.case))
        if missing := [name for name in names if name not in values]:
            raise NotApplicable(f"the answer has no {missing[0]}")
        outputs = tuple(values[name] for name in names)
        arrays = {n: self.backend.array(a, inputs.dtype) for n, a in operands(inputs).items()}
        return PreparedCall(lambda **_: outputs if len(names) > 1 else outputs[0], arrays, names)

    def differentiable(self, inputs: Inputs) -> PreparedCall:
        call, values = self.prepare(inputs), self._answer(inputs)
        gradients = {
            n.removeprefix("grad."): value for n, value in values.items() if n.startswith("grad.")
        }
        if not gradients:
            raise NotApplicable("the answer has no gradients")
        stored = self.backend.answered[inputs.digest].cotangent()

        def vjp(cotangent: Rounded, wrt: Sequence[str], **_: Any) -> dict[str, Any]:
            if stored is None or not np.array_equal(cotangent.values.ravel(), stored.ravel()):
                raise HarnessError(f"{inputs.case.id} is differentiated with another cotangent")
            return {name: gradients.get(name) for name in wrt}

        call.vjp = vjp
        return call

    def _answer(self, inputs: Inputs) -> dict[str, Rounded]:
        """Returns the tensors of the answer to these inputs by name. Raises WrongAnswer "type" for an
        invalid file or unexpected tensors, "dtype" for a narrower type, and "shape". Raises HarnessError
        if the vectors do not have these inputs."""
        problem = self.backend.answered.get(inputs.digest)
        if problem is None:
            raise HarnessError(f"the vectors do not have this variation of {inputs.case.id}")
        path, answers, values = self.backend.files[problem.case.id], problem.answers(), {}
        try:
            tensors = files.decoded(require_regular_file(path).read_bytes())
        except (OSError, VectorsError) as error:
            raise WrongAnswer("type", f"{path.name} is no safetensors file: {error}") from error
        if "output" not in tensors or tensors.keys() - answers:
            got = ", ".join(sorted(tensors)) or "none"
            raise WrongAnswer("type", f"expected the tensors {', '.join(answers)}, got {got}")
        for name, (dtype, array) in tensors.items():
            expected = answers[name]
            if dtype not in {expected.type, "F64", "F64" if expected.type == "F64" else "F32"}:
                raise WrongAnswer(
                    "dtype", f"expected {expected.type} or wider of {name}, got {dtype}"
                )
            if array.shape != expected.shape:
                raise WrongAnswer(
                    "shape", f"expected shape {expected.shape} of {name}, got {array.shape}"
                )
            # A squeezed case has outputs without axes of size 1.
            shape = array.shape if name.startswith("grad.") else inputs.output_shape(name)
            floats = array.astype(np.float64).reshape(shape)
            values[name] = Rounded(floats, files.FORMATS[expected.type])
        return values
