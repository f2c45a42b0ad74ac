"""Promise: what an adapter says that its framework refuses is refused by that, and by no slip of ours."""

from __future__ import annotations

import traceback

import pytest

from attention_conformance.backends.registry import load
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import draw
from attention_conformance.suite.test_malformed import ARGUMENTS


@pytest.mark.parametrize("backend", ["torch", "tf", "jax"])
def test_frameworks_refuse(backend: str) -> None:
    """The innermost frame of every exception is outside this project, or the call of what is compiled."""
    count = 0
    for implementation in load(backend).implementations():
        for case in map(Case.parse, ARGUMENTS):
            if case.operator is not implementation.operator or implementation.unsupported(case):
                continue
            for name, call in implementation.refused(draw(case)).items():
                with pytest.raises(Exception) as error:  # noqa: PT011
                    call()
                slips = NameError, AttributeError, KeyError
                assert not isinstance(error.value, slips), (implementation.name, name)
                innermost = traceback.extract_tb(error.value.__traceback__)[-1]
                # What is compiled has no frame: the call itself is the innermost one.
                compiled = innermost.name == "<lambda>" and error.type is RuntimeError
                theirs = "site-packages" in innermost.filename or compiled
                assert theirs, (implementation.name, name, error.value)
                count += 1
    assert count >= 8
