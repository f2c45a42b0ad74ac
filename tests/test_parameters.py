"""Every public parameter of what implementations call is passed by some case, or has a reason."""

from __future__ import annotations

import pytest

from attention_conformance.backends import registry
from tests.studies import parameters
from tests.studies.parameters import defaults, functions, reason, recorded, unpassed
from tests.studies.subjects import REASONS, SUBJECTS

RECORDED = recorded(parameters.PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("backend", SUBJECTS)
def test_each_parameter_is_passed_or_has_a_reason(backend: str) -> None:
    if backend not in registry.installed():
        pytest.skip(f"needs {', '.join(registry.modules(backend))}")
    left = [
        f"{name}({parameter})"
        for subject in SUBJECTS[backend]
        for name, function in functions(subject).items()
        for parameter in unpassed(name, defaults(function), RECORDED.get(name, set()))
        if not reason(name, parameter)
    ]
    assert not left, (
        f"expected a case that passes each parameter, or a reason in tests/studies/subjects.py; got "
        f"neither for {', '.join(left)}; pass them in a row, or add reasons, and run "
        f"`python -m tests.studies.parameters {backend}`"
    )


def test_each_reason_stands_on_the_page() -> None:
    page = parameters.PAGE.read_text(encoding="utf-8")
    assert [why for why in REASONS.values() if f"| {why} |" not in page] == []
