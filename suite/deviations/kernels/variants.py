"""Kernels that round, split or buffer differently from `Kernel`; deviations change them, too."""

from __future__ import annotations

from threading import local

import numpy as np

from attention_conformance.suite.deviations.kernels.attention import Call, Eager, Kernel, Online
from attention_conformance.suite.spec.dtypes import round_to


class FlashFused(Online):
    """Flash attention: weights are rounded to the case's dtype before they are normalised."""

    numerics = "fused"
    stores = ("weights",)


class MergedChunks(Kernel):
    """Split-KV: chunks of keys are attended separately, and merged by their log-sum-exps."""

    chunks = 3

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        value = self.visible(value, scores)
        parts = [
            (super(MergedChunks, self).attend(s, v, call), self.lse_of(s))
            for s, v in zip(
                np.array_split(scores, self.chunks, axis=-1),
                np.array_split(value, self.chunks, axis=-2),
                strict=True,
            )
        ]
        return self.merge(parts)

    def merge(self, parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Returns the sum of the chunks' answers, weighted by exp(lse - total lse). `parts`: answer and
        log-sum-exp of each chunk."""
        total_lse = self.lse_of(np.concatenate([lse for _, lse in parts], axis=-1))
        anchor = np.where(np.isneginf(total_lse), 0, total_lse)
        return sum(out * np.exp(lse - anchor) for out, lse in parts)

    def lse_of(self, scores: np.ndarray) -> np.ndarray:
        """Returns the log-sum-exp (..., 1) over the last axis of scores (..., n); -inf if all are
        -inf."""
        maximum = scores.max(-1, keepdims=True, initial=-np.inf)
        anchor = np.where(np.isneginf(maximum), 0, maximum)
        return anchor + np.log(np.exp(scores - anchor).sum(-1, keepdims=True))


class WorkingPrecision(Eager):
    """Every operation is rounded to the case's 16-bit dtype, sums after every addition.

    Deviations are made of this kernel, because only checks of precision may fail for it.
    """

    dtypes = ("bf16", "f16")
    numerics = "working"

    def round(self, x: np.ndarray, call: Call) -> np.ndarray:
        return round_to(x, call.fmt).astype(call.work)

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        product = np.zeros((*query.shape[:-1], key.shape[-2]), query.dtype)
        for d in range(query.shape[-1]):
            term = self.round(query[..., d, None] * key[..., None, :, d], call)
            product = self.round(product + term, call)
        factor = call.work(round_to(self.factor(call), call.fmt))
        return self.round(product * factor, call)

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        value = self.visible(value, scores)
        exponentials = self.round(np.exp(self.round(self.shifted(scores), call)), call)
        total = np.zeros((*scores.shape[:-1], 1), scores.dtype)
        for j in range(scores.shape[-1]):
            total = self.round(total + exponentials[..., j, None], call)
        weights = self.round(exponentials / np.where(total == 0, 1, total), call)
        out = np.zeros((*scores.shape[:-1], value.shape[-1]), scores.dtype)
        for j in range(scores.shape[-1]):
            term = self.round(weights[..., j, None] * value[..., None, j, :], call)
            out = self.round(out + term, call)
        return out


class Workspace(Kernel):
    """Values are copied into a workspace, one per thread, which grows and is reused. The part of the
    workspace behind the values gets weights of zero."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        workspaces = self.__dict__.setdefault("workspaces", local()).__dict__
        *outer, length, width = value.shape
        key = (*outer, width, value.dtype)
        if key not in workspaces or workspaces[key].shape[-2] < length:
            workspaces[key] = np.zeros((*outer, length, width), value.dtype)
        workspace = workspaces[key]
        workspace[..., :length, :] = self.visible(value, scores)
        self.clear(workspace[..., length:, :])
        padding = ((0, 0),) * 3 + ((0, workspace.shape[-2] - length),)
        return self.weights(np.pad(scores, padding, constant_values=-np.inf), call) @ workspace

    def clear(self, rest: np.ndarray) -> None:
        """Clears the part of the workspace behind the values. Does nothing here, because its weights are
        zero.
        """
