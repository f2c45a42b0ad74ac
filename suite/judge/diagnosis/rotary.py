"""Faulty rotary embeddings: other positions, frequencies and angles."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from attention_conformance.references.rotary import frequencies
from attention_conformance.suite.judge.diagnosis.instrument import Variant
from attention_conformance.suite.judge.diagnosis.layers import ProblemVariant
from attention_conformance.suite.spec.dtypes import DTYPES, DType, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.rotary import Rotation


def rotary_problems(inputs: Inputs) -> Iterator[ProblemVariant]:
    """Faulty rotations: other positions, frequencies, components and angles."""
    position, length = inputs.arrays["position"], inputs.sizes.Lq
    hint = "`arange(1, n + 1)`, the length of a cache that counts twice"
    for n in (1, -1, *range(2, 5), *range(-4, -1), length, -length):
        text = f"Position p is rotated as position p {'+' if n > 0 else '-'} {abs(n)}."
        yield Variant(inputs.replace(position=position + n), text, hint, "rotary")
    yield Variant(inputs.replace(position=0 * position), "Nothing is rotated.", family="rotary")
    yield from _angle_problems(inputs)
    yield from _frequency_problems(inputs)


def _frequency_problems(inputs: Inputs) -> Iterator[ProblemVariant]:
    """Rotations by other frequencies, or of another number of components."""
    case, D = inputs.case, inputs.sizes.D
    base, size = case.option("base") or 1e4, case.option("rotated") or D
    for power, text in ((0.5, "-i/D"), (2.0, "-4i/D")):
        text = f"The frequencies are base^({text}), expected base^(-2i/D)."
        hint = "`arange(0, D, 2) / D` are the exponents"
        yield Variant(inputs.replace(base=base**power), text, hint, "rotary")
    for other_base in (1e4, 1e2, 1e3, 1e5, 1e6, 5e5, base / 2, base * 2):
        if other_base != base:
            text = f"The base of the frequencies is {other_base:g}, expected {base:g}."
            hint = "`theta` of another model, or a default"
            yield Variant(
                inputs.replace(base=other_base), text, hint, "rotary", key=f"base {other_base:g}"
            )
    for count in (D, size // 2, size - 2):
        if count != size and count > 0 and count % 2 == 0:
            problem = inputs.replace(rotated=count if count != D else 0)
            text = f"{count} components are rotated, expected {size}"
            yield Variant(problem, f"{text}.", "`rotary_dim` that is not used", "rotary")
            problem = problem.replace(base=base ** (size / count))
            yield Variant(problem, f"{text}, with the frequencies of {size}.", family="rotary")
    for scaling in ("none", "linear", "ntk", "llama3", "yarn", "longrope"):
        is_defined = size >= 4 or scaling != "ntk"  # NTK scaling needs two frequencies
        if is_defined and case.option("scaling") != scaling:
            text = f"Frequencies are scaled as {scaling!r}, expected {case.option('scaling')!r}."
            hint = "`rope_scaling` that is not used"
            yield Variant(
                inputs.replace(scaling=scaling), text, hint, "rotary", key=f"scaling {scaling}"
            )


def _angle_problems(inputs: Inputs) -> Iterator[ProblemVariant]:
    """Queries rotated by the angles of other pairs of components, or by rounded angles."""
    query, position = inputs.query, inputs.arrays["position"]
    adjacent = inputs.case.option("interleaved")
    rotation = Rotation.of(inputs.case, query.shape[-1])
    exact = frequencies(rotation, np.asarray(position, float))

    def rotate(
        theta: np.ndarray,
        place: np.ndarray,
        adjacent_pairs: bool,
        adjacent_angles: bool,
        rounded: Callable[[np.ndarray], np.ndarray] = np.asarray,
    ) -> dict[str, np.ndarray]:
        """The output for angles place * theta. `adjacent_pairs` are 2i and 2i + 1, others i and i + D/2;
        `adjacent_angles` belong to adjacent pairs."""
        angle = rounded(place[..., None] * theta)
        angle = angle[:, None] if angle.ndim == 3 else angle
        angle = np.repeat(angle, 2, -1) if adjacent_angles else np.concatenate([angle, angle], -1)
        x = query[..., : rotation.size]
        if adjacent_pairs:
            quarter_turn = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
        else:
            first, second = np.split(x, 2, -1)
            quarter_turn = np.concatenate([-second, first], -1)
        cosine, sine = (rounded(f(angle)) * exact.attention for f in (np.cos, np.sin))
        unrotated = query[..., rotation.size :]
        return {"output": np.concatenate([x * cosine + quarter_turn * sine, unrotated], -1)}

    for adjacent_pairs, text in (
        (False, "Angles belong to neighbours 2i and 2i + 1, and halves i and i + D/2 are rotated."),
        (True, "Angles belong to halves i and i + D/2, and neighbours 2i and 2i + 1 are rotated."),
    ):
        output = rotate(exact.theta, position, adjacent_pairs, not adjacent_pairs)
        hint = "`repeat_interleave(2)` goes with neighbours, `cat([angle, angle])` with halves"
        yield Variant(output, text, hint, "rotary")
    for name in ("bf16", "f16", "f32"):
        fmt = DTYPES[name]

        def rounded(x: np.ndarray, fmt: DType = fmt) -> np.ndarray:
            return round_to(x, fmt)

        theta, place = rounded(exact.theta), rounded(position)
        hint = "`position.to(query.dtype)`, frequencies in the dtype of the model"
        for output, beginning in (
            (rotate(theta, place, adjacent, adjacent, rounded), "Angles are computed"),
            (rotate(theta, place, adjacent, adjacent), "Positions and frequencies are rounded"),
            (rotate(exact.theta, place, adjacent, adjacent), "Positions are rounded"),
            (rotate(theta, position, adjacent, adjacent), "Frequencies are rounded"),
        ):
            to = f"{'in' if 'computed' in beginning else 'to'} {fmt.long_name}"
            yield Variant(output, f"{beginning} {to} before the sine and cosine.", hint, "rotary")
