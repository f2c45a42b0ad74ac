"""torch's exporter to ONNX as a compiler: what it makes of a call is what ONNX Runtime answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_conformance.backends.registry import load
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import draw

pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

from attention_conformance.backends._torch import compilers
from tests.runtimes import of


def implementation(name: str) -> Any:
    return of(load("torch"), name)


def exported(name: str, compiler: str, case: str) -> tuple[np.ndarray, np.ndarray]:
    """The answer of an implementation, and that of the model that is exported of its call."""
    chosen = implementation(name)
    backend, prepared = chosen.backend, chosen.prepare(draw(Case.parse(case)))
    model = backend.compilers.compiled(prepared, compiler, 2)
    return backend.to_numpy(prepared()), backend.to_numpy(model())


@pytest.mark.parametrize("compiler", compilers.OPSETS)
@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_a_model_answers_as_the_call_does(name: str, compiler: str) -> None:
    call, model = exported(name, compiler, "sdpa/bool.bhqk/mha/f32/b2h3q5k7d8/scale0.3/dense")
    assert np.abs(model - call).max() < 1e-5
    assert np.abs(call).max() > 0.1


def test_a_model_of_opset_23_has_the_operator_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx
    import onnxruntime

    models: list[Any] = []
    session = onnxruntime.InferenceSession

    def seen(model: bytes, *rest: Any, **more: Any) -> Any:
        models.append(onnx.load_model_from_string(model))
        return session(model, *rest, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", seen)
    exported("sdpa", "onnx-23", "sdpa/causal/mha/f32/b2h3q5k5d8")
    assert [o.version for o in models[0].opset_import if o.domain == ""] == [23]
    assert "Attention" in {node.op_type for node in models[0].graph.node}
