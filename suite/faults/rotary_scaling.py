"""Faults of the scaled variants of rotary position embedding."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.references.rotary import frequencies
from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.rotary import RotaryKernel, Turn
from attention_conformance.suite.spec.operators.rotary import ORIGINAL_LENGTH


class Scaled(RotaryKernel):
    """A rotation whose scaled variant `variant` is not what it should be."""

    variant = ""

    def frequencies(self, turn: Turn) -> tuple[np.ndarray, Any]:
        if turn.rotation.scaling != self.variant:
            return super().frequencies(turn)
        pair = self.otherwise(turn)
        return pair[0].astype(turn.work), turn.work(pair[1])

    def otherwise(self, turn: Turn) -> tuple[np.ndarray, float]:
        """The frequencies and the factor instead."""
        raise NotImplementedError

    def plain(self, turn: Turn, base: float = 0.0) -> np.ndarray:
        """Frequencies without scaling."""
        exponent = np.arange(0, turn.rotation.size, 2) / turn.rotation.size
        return (base or turn.rotation.base) ** -exponent


def rotary_grows_from_the_first(right: Scaled, turn: Turn) -> tuple[np.ndarray, float]:
    size, growth = turn.rotation.size, max(4.0 * turn.length / ORIGINAL_LENGTH - 3, 0.1)
    return right.plain(turn, turn.rotation.base * growth ** (size / (size - 2))), 1.0


def rotary_mixed_in_steps(right: Scaled, turn: Turn) -> tuple[np.ndarray, float]:
    theta = right.plain(turn)
    turns = ORIGINAL_LENGTH * theta / (2 * np.pi)
    return np.where(turns < 1.0, theta / 4.0, theta), 1.0


def rotary_yarn_ramp_reversed(right: Scaled, turn: Turn) -> tuple[np.ndarray, float]:
    reference, theta = frequencies(turn.rotation, turn.position), right.plain(turn)
    return theta / 4.0 + theta - reference.theta, reference.attention


def rotary_always_short(right: Scaled, turn: Turn) -> tuple[np.ndarray, float]:
    reference = frequencies(turn.rotation, turn.position)
    return right.plain(turn) / turn.rotation.short_factors(), reference.attention


def rotary_grows_like_yarn(right: RotaryKernel, turn: Turn) -> tuple[np.ndarray, np.ndarray]:
    cosine, sine = right.table(turn)
    factor = turn.work(0.1 * np.log(4.0) + 1)
    return cosine * factor, sine * factor


def rotary_given_factor_ignored(right: RotaryKernel, turn: Turn) -> tuple[np.ndarray, Any]:
    own = replace(turn.rotation, scaling=turn.rotation.variant)
    return right.frequencies(replace(turn, rotation=own))


def rotary_given_factor_multiplied(right: RotaryKernel, turn: Turn) -> tuple[np.ndarray, Any]:
    theta, factor = right.frequencies(turn)
    own = replace(turn.rotation, scaling=turn.rotation.variant)
    if turn.rotation.scaling.endswith("-factor"):
        factor = factor * right.frequencies(replace(turn, rotation=own))[1]
    return theta, factor


def rotary_mscale_reversed(right: RotaryKernel, turn: Turn) -> tuple[np.ndarray, Any]:
    theta, factor = right.frequencies(turn)
    return theta, 1 / factor if turn.rotation.scaling == "yarn-mscale" else factor


row = partial(deviation, family="rotary", right=Scaled)

DEVIATIONS = [
    row("rotary-linear-ignored", "values", "Linear scaling of positions has no effect.",
        "`rope_scaling` is not read; linear: `inv_freq / factor`", facts={"variant": "linear"},
        otherwise=lambda right, turn: (right.plain(turn), 1.0)),
    row("rotary-grows-from-the-first", "values",
        "Dynamic NTK: the base changes within the original length, too.",
        "`growth` from L below the original length, too; take `max(L, original)`",
        facts={"variant": "ntk"}, otherwise=rotary_grows_from_the_first),
    row("rotary-never-grows", "values",
        "Dynamic NTK: the base does not grow beyond the original length.",
        "`inv_freq` of `__init__` for every length; recompute the base beyond the original length",
        facts={"variant": "ntk"}, otherwise=lambda right, turn: (right.plain(turn), 1.0)),
    row("rotary-mixed-in-steps", "values",
        "llama3: frequencies between both ends are kept as they are, not mixed.",
        "`where(turns < 1, inv_freq / factor, inv_freq)`; between 1 and 4 turns mix both smoothly",
        facts={"variant": "llama3"}, otherwise=rotary_mixed_in_steps),
    row("rotary-yarn-without-factor", "values",
        "yarn: sine and cosine are not multiplied by the attention factor.",
        "`cos`, `sin` without `* attention_factor`, which is `0.1 * log(factor) + 1`",
        facts={"variant": "yarn"},
        otherwise=lambda right, turn: (frequencies(turn.rotation, turn.position).theta, 1.0)),
    row("rotary-yarn-ramp-reversed", "values",
        "yarn: fast components are divided by the factor, slow ones kept.",
        "`ramp` for `1 - ramp`; fast components are kept, slow ones divided by the factor",
        facts={"variant": "yarn"}, otherwise=rotary_yarn_ramp_reversed),
    row("rotary-always-short", "values", "longrope: long sequences take the factors of short ones.",
        "`short_factor` always; beyond the original length it is `long_factor`",
        facts={"variant": "longrope"}, otherwise=rotary_always_short),
    row("rotary-grows-like-yarn", "norm_kept",
        "Sine and cosine are multiplied by yarn's factor, whatever variant is asked for.",
        "`cos * attention_factor` in every variant; it is 1 unless yarn or longrope is asked for",
        right=RotaryKernel, table=rotary_grows_like_yarn),
    row("rotary-given-factor-ignored", "values", "A given factor on sine and cosine has no effect.",
        "`attention_factor` is not read; if it is given, it replaces the variant's own",
        right=RotaryKernel, frequencies=rotary_given_factor_ignored),
    row("rotary-given-factor-multiplied", "values",
        "A given factor on sine and cosine is multiplied by the variant's own.",
        "`own * attention_factor`; a given factor replaces the variant's own", right=RotaryKernel,
        frequencies=rotary_given_factor_multiplied),
    row("rotary-mscale-reversed", "values", "yarn: `mscale` and `mscale_all_dim` are exchanged.",
        "`get_mscale(mscale_all_dim) / get_mscale(mscale)`; it is the other way round",
        right=RotaryKernel, frequencies=rotary_mscale_reversed),
]  # fmt: skip
