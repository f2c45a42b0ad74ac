"""Promise: what an adapter says that its framework refuses is refused by that, and by no slip of ours."""

from __future__ import annotations

import traceback

import pytest

from backends.registry import load
from suite.spec.case import Case
from suite.spec.inputs import draw
from suite.test_malformed import ARGUMENTS


@pytest.mark.parametrize("backend", ["torch", "tf", "jax"])
def test_frameworks_refuse(backend: str) -> None:
    """The innermost frame of every exception is outside this project, and its type says that a person
    erred."""
    asked = 0
    for implementation in load(backend).implementations():
        for case in map(Case.parse, ARGUMENTS):
            if case.operator is not implementation.operator or implementation.unsupported(case):
                continue
            for name, call in implementation.refused(draw(case)).items():
                with pytest.raises((ValueError, TypeError, AssertionError, RuntimeError)) as error:
                    call()
                innermost = traceback.extract_tb(error.value.__traceback__)[-1]
                # What is compiled has no frame: the call itself is the innermost one.
                theirs = "site-packages" in innermost.filename or innermost.name == "<lambda>"
                assert theirs, (implementation.name, name, error.value)
                asked += 1
    assert asked > 10
