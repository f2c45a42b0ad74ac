"""Honest variants with split keys."""

from __future__ import annotations

import numpy as np

from attention_conformance.backends.declared import DeclaredRounding
from attention_conformance.suite.deviations.kernels.cached import CachedKernel
from attention_conformance.suite.deviations.kernels.merge import SplitKernel
from attention_conformance.suite.deviations.kernels.paged import Paged
from attention_conformance.suite.deviations.kernels.variants import MergedChunks
from attention_conformance.suite.spec.dtypes import DTYPES, round_to


class SplitStored(SplitKernel):
    """Answers of parts are stored in the dtype of the query, as it declares."""

    count = 8
    rounding = DeclaredRounding(stored_parts=tuple(DTYPES))

    def stored(self, answer: np.ndarray, pack: Paged) -> np.ndarray:
        return round_to(answer, pack.fmt).astype(answer.dtype)


class SplitSingleKeys(SplitStored):
    """Of short samples every key is a part, whose answer is a value."""

    count = 40


class CachedSplit(CachedKernel):
    """Every step answers three parts of the keys, and merges them by their log-sum-exps."""

    kernel = MergedChunks
