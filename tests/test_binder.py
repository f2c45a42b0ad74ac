"""The binder: what a callable takes, lacks and is passed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from attention_conformance.backends.binder import Binder, Parameter, UnreadableSignature
from attention_conformance.backends.declared import UsageError

Call = dict[str, Any]


def asked(name: str) -> Callable[[Call], Any]:
    return lambda call: call.get(name)


TABLE: tuple[Parameter[Call], ...] = (
    Parameter("is_causal", ("causal", "flag"), asked("is_causal")),
    Parameter("mask", ("mask", "causal"), asked("mask")),
    Parameter("scale", ("scale",), asked("scale")),
    Parameter("softmax_scale", ("scale",), asked("scale"), unless="scale"),
    Parameter("scaling", (), asked("scaling"), passes_none=True),
)


def binder(function: Callable[..., Any], **more: Any) -> Binder[Call]:
    return Binder.of(function, "mine", TABLE, ("query", "key"), **more)


def test_what_is_asked_for_and_taken_is_passed() -> None:
    def function(q, k, is_causal=False, scale=1.0, softmax_scale=1.0, scaling=0):  # type: ignore[no-untyped-def]
        return q

    of = binder(function)
    assert of.bind({}) == {"scaling": None}
    # One of two names of the scale is enough, and a mask that no feature needs is left out.
    call = {"scale": 0.5, "is_causal": True, "mask": "mask"}
    assert of.bind(call) == {"scaling": None, "scale": 0.5, "is_causal": True}
    assert of.bind(call, ["causal"]) == of.bind(call)
    # What is needed and not taken is passed, so that Python refuses the call.
    assert of.bind(call, ["mask"]) == of.bind(call) | {"mask": "mask"}
    (more, *_) = of.with_one_more().items()
    assert more[0] == "mask"
    assert more[1].bind(call) == of.bind(call, ["mask"])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda q: q,
            r"mine\(q\) does not fit; expected mine\(query, key, \*, is_causal=..., mask",
        ),
        (lambda q, k, block: q, "block.* does not fit"),
        (lambda q, k, *, block: q, "block.* does not fit"),
        (lambda q, k, mask, /: q, "mask, /.* does not fit"),
    ],
)
def test_what_does_not_fit_is_told_what_would(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        binder(function)


def test_any_keyword_stands_for_the_rest_alone() -> None:
    assert binder(lambda q, k, **more: q).taken == set()
    assert binder(lambda q, k, scaling=1, **more: q, rest=["mask"]).taken == {"mask", "scaling"}
    assert binder(lambda *all, mask=None: all).taken == {"mask"}
    with pytest.raises(UnreadableSignature, match="wrap it in a function that has one"):
        binder(type("No", (), {"__signature__": 3, "__call__": None}))


def test_knobs_are_told_apart_from_misspelt_names() -> None:
    of = binder(lambda q, k, block=16, *, num_warps=4, is_causal=False: q)
    of.check_names("mine")
    assert of.knobs == ("block", "num_warps")
    assert of.remarks == ("never passed, so that the default is judged: block, num_warps",)
    with pytest.raises(UsageError, match=r"never passed: causal; did you mean is_causal\?"):
        binder(lambda q, k, causal=False, block=16: q).check_names("mine")
    # A name that is taken cannot be meant.
    binder(lambda q, k, causal=False, is_causal=False: q).check_names("mine")
    assert not binder(lambda q, k: q).remarks
