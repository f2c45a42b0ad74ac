"""The operations of the honest kernel, as NumPy and torch spell them."""

from __future__ import annotations

import math
from typing import Any


class Arrays:
    """The operations of a module `xp` that is spelled like NumPy. `most`, `total` and `some` (any) are
    over the last axis, which stays with size 1."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.where, self.exp, self.log, self.tanh, self.abs = (
            xp.where,
            xp.exp,
            xp.log,
            xp.tanh,
            xp.abs,
        )
        self.isnan, self.arange = xp.isnan, xp.arange
        self.swapaxes, self.reshape, self.broadcast_to = xp.swapaxes, xp.reshape, xp.broadcast_to

    def named(self, x: Any) -> str:
        """The name of an array's dtype."""
        return str(x.dtype)

    def cast(self, x: Any, name: str) -> Any:
        """`x` in the dtype of this name."""
        return x.astype(name)

    def zeros(self, shape: tuple[int, ...], name: str) -> Any:
        return self.xp.zeros(shape, dtype=name)

    def stopped(self, x: Any) -> Any:
        """`x` as a constant, which has no gradient."""
        return x

    def silenced(self, x: Any) -> Any:
        """`x`, whose cotangent goes nowhere."""
        return self.stopped(x)

    def most(self, x: Any) -> Any:
        """The maximum, -inf of nothing, as a constant."""
        return self.stopped(self.xp.max(x, axis=-1, keepdims=True, initial=-math.inf))

    def exist(self, rows: Any) -> bool:
        """Whether there are any of the rows, as far as is known."""
        return bool(self.xp.any(rows))

    def total(self, x: Any) -> Any:
        return self.xp.sum(x, axis=-1, keepdims=True)

    def some(self, x: Any) -> Any:
        return self.xp.any(x, axis=-1, keepdims=True)

    def repeated(self, x: Any, count: int) -> Any:
        """Heads (B, Hkv, L, D) repeated one by one."""
        return self.xp.repeat(x, count, axis=1)

    def joined(self, x: Any, y: Any) -> Any:
        """Two arrays side by side along the last axis."""
        return self.xp.concatenate([x, y], axis=-1)


class OfTorch(Arrays):
    def __init__(self) -> None:
        import torch

        super().__init__(torch)

    def named(self, x: Any) -> str:
        return str(x.dtype).removeprefix("torch.")

    def cast(self, x: Any, name: str) -> Any:
        return x.to(getattr(self.xp, name))

    def zeros(self, shape: tuple[int, ...], name: str) -> Any:
        return self.xp.zeros(shape, dtype=getattr(self.xp, name))

    def stopped(self, x: Any) -> Any:
        return x.detach()

    def silenced(self, x: Any) -> Any:
        if x.requires_grad:
            x.register_hook(self.xp.zeros_like)
        return x

    def most(self, x: Any) -> Any:
        return (
            x.detach().amax(-1, keepdim=True)
            if x.shape[-1]
            else x.new_full((*x.shape[:-1], 1), -math.inf)
        )

    def total(self, x: Any) -> Any:
        return x.sum(-1, keepdim=True)

    def some(self, x: Any) -> Any:
        return x.any(-1, keepdim=True)

    def repeated(self, x: Any, count: int) -> Any:
        return x.repeat_interleave(count, dim=1)
