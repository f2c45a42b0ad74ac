"""Questions about modes that surround a call: automatic mixed precision, other defaults of the framework,
and transformations of functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from attention_conformance.backends.protocol import Ambient, Implementation, PreparedCall
from attention_conformance.suite.judge.elections.probe import Probe
from attention_conformance.suite.judge.verdict import NotApplicable, WrongAnswer
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs


def modes_of(implementation: Implementation) -> dict[str, Ambient]:
    """Returns the framework's modes in which an implementation can be called, by name."""
    return {
        name: mode
        for setting in implementation.backend.settings.values()
        for name, mode in setting.modes.items()
        if not mode.dtype or mode.dtype in implementation.declared.dtypes
    }


def transformed_calls(
    implementation: Implementation, inputs: Inputs, prepared: PreparedCall
) -> dict[str, Callable[[], PreparedCall]]:
    """Returns functions by the name of a transformation (such as vmap). Each function returns `prepared`
    as a call inside that transformation. {} for calls with several outputs."""
    backend = implementation.backend
    has_one_output = inputs.operator.packing is None and len(prepared.outputs) == 1
    candidates = (
        {*backend.ambient} & {*backend.compilers_of(implementation)} if has_one_output else set()
    )
    needed = {"compiled", inputs.dtype.long_name}
    return {
        name: partial(backend.compiled, prepared, name, inputs.sizes.B)
        for name in sorted(candidates)
        if not needed & backend.lacking_through(implementation, name).keys()
    }


def _probe_autocast(p: Probe) -> str:
    modes = (m for m in modes_of(p.implementation).values() if m.question == "autocast")
    mode = next((m for m in modes if m.dtype == p.dtype.name), None)
    if mode is None:
        raise NotApplicable(f"{p.implementation.backend.name} has no automatic mixed precision")
    if "f32" not in p.implementation.declared.dtypes:
        raise NotApplicable("dtype float32 is not supported")
    f32_probe, backend = Probe(p.implementation, DTYPES["f32"]), p.implementation.backend
    inputs_16 = p.inputs()
    inputs = inputs_16.replace(dtype=f32_probe.dtype)
    f32_probe.require(inputs)
    prepared = p.implementation.prepare(inputs)
    try:
        with mode.within():
            native = prepared()
    except Exception:
        return _raises_only_in_mode(f32_probe, inputs)
    got = p.read(native, inputs, prepared)["output"]
    dtype = backend.dtype_name(native[0] if isinstance(native, tuple | list) else native)
    if dtype == f32_probe.dtype.long_name and f32_probe.matches(got, inputs):
        return "unchanged"
    names = {p.dtype.long_name: "narrow", f32_probe.dtype.long_name: "narrow-inside"}
    if dtype in names and p.matches(got, inputs_16):
        return names[dtype]
    raise WrongAnswer(
        "election",
        f"under automatic mixed precision the answer is {dtype}, and not the right one rounded to "
        f"{p.dtype.long_name}",
    )


def _probe_changed_default(question: str, p: Probe) -> str:
    """Returns the answer to a question about another default of the framework, of dtype or device:
    "answers" if a call is right while the first mode of this question is on, "raises" if it raises only
    there. Raises NotApplicable if the framework has no such mode."""
    modes = (m for m in modes_of(p.implementation).values() if m.question == question)
    mode = next(modes, None)
    if mode is None:
        raise NotApplicable(f"{p.implementation.backend.name} has no such mode")
    inputs = p.inputs()
    p.require(inputs)
    return _answers_or_raises(p, inputs, mode, lambda: p.implementation.prepare(inputs))


def _probe_transformation(question: str, p: Probe) -> str:
    inputs = p.inputs()
    p.require(inputs)
    plain_call = p.implementation.prepare(inputs)
    ambient = p.implementation.backend.ambient
    calls = transformed_calls(p.implementation, inputs, plain_call).items()
    prepare = next((call for name, call in calls if ambient[name] == question), None)
    if prepare is None:
        raise NotApplicable(f"{p.implementation.backend.name} has no such transformation")
    return _answers_or_raises(p, inputs, None, prepare)


def _answers_or_raises(
    p: Probe, inputs: Inputs, mode: Ambient | None, prepare: Callable[[], PreparedCall]
) -> str:
    """Returns "answers" if the call is right in the mode, "raises" if it raises only there. `mode` None:
    the call has its mode inside. Raises WrongAnswer "election" if the answer is wrong."""
    try:
        prepared = prepare()
        if mode is None:
            native = prepared()
        else:
            with mode.within():
                native = prepared()
    except Exception:
        return _raises_only_in_mode(p, inputs)
    if p.matches(p.read(native, inputs, prepared)["output"], inputs):
        return "answers"
    raise WrongAnswer("election", "the mode around the call makes the answer wrong")


def _raises_only_in_mode(p: Probe, inputs: Inputs) -> str:
    """Returns "raises" if the call answers outside the mode. Raises Refused or NotApplicable if the call
    raises there, too."""
    if p.arrays(inputs) is None:
        raise NotApplicable("the call raises outside the mode, too")
    return "raises"


PROBES: dict[str, Callable[[Probe], str]] = {
    "autocast": _probe_autocast,
    "wider-default-dtype": partial(_probe_changed_default, "wider-default-dtype"),
    "other-default-device": partial(_probe_changed_default, "other-default-device"),
    "mapped": partial(_probe_transformation, "mapped"),
    "traced": partial(_probe_transformation, "traced"),
}
"""The probe of each question: it returns the name of the implementation's answer."""
