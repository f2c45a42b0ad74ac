"""Caches in torch, as people write them: right ones, and ones with a fault."""

from __future__ import annotations

from typing import Any

import torch

State = tuple[torch.Tensor, torch.Tensor]


def attend(query: Any, key: Any, value: Any, shown: Any, scale: float | None = None) -> Any:
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scale is None else scale)
    return torch.softmax(scores.masked_fill(~shown, -torch.inf), -1) @ value


class Growing:
    """Concatenates. Knows windows, left padding and all operations."""

    def init(self, batch: int, heads: int, head_size: int, value_size: int, dtype: Any) -> State:
        empty = (torch.empty(batch, heads, 0, n, dtype=dtype) for n in (head_size, value_size))
        key, value = empty
        return key, value

    def step(
        self, state: State, query: Any, key: Any, value: Any, *,
        window: tuple[int, int] | None = None, left_padding: Any = None, scale: float | None = None,
    ) -> tuple[Any, State]:  # fmt: skip
        key, value = torch.cat([state[0], key], 2), torch.cat([state[1], value], 2)
        length = key.shape[2]
        rows = torch.arange(length - query.shape[2], length)[:, None]
        keys = torch.arange(length)
        shown = keys <= rows
        if window is not None:
            shown = shown & (rows - keys <= window[0])
        if left_padding is not None:
            shown = shown & (keys >= left_padding[:, None, None, None])
        return attend(query, key, value, shown, scale), (key, value)

    def reset(self, state: State) -> State:
        return state[0][:, :, :0], state[1][:, :, :0]

    def crop(self, state: State, count: int) -> State:
        return state[0][:, :, :-count], state[1][:, :, :-count]

    def reorder(self, state: State, samples: Any) -> State:
        return state[0][samples], state[1][samples]


class Slots:
    """Slots in place, which hold every token: no window, no ring."""

    def init(
        self, batch: int, capacity: int, heads: int, head_size: int, dtype: Any, device: Any
    ) -> dict[str, Any]:
        shape = (batch, heads, capacity, head_size)
        made = {n: torch.zeros(shape, dtype=dtype, device=device) for n in ("key", "value")}
        return {**made, "length": 0}

    def step(self, state: dict[str, Any], query: Any, key: Any, value: Any) -> tuple[Any, Any]:
        start, end = state["length"], state["length"] + query.shape[2]
        state["key"][:, :, start:end], state["value"][:, :, start:end] = key, value
        state["length"] = end
        shown = torch.arange(end) <= torch.arange(start, end)[:, None]
        return attend(query, state["key"][:, :, :end], state["value"][:, :, :end], shown), state

    def reset(self, state: dict[str, Any]) -> dict[str, Any]:
        state["length"] = 0
        return state


slots = Slots()


class Shared(Slots):
    """All objects write into one state."""

    made: dict[Any, dict[str, Any]] = {}

    def init(self, batch: int, capacity: int, heads: int, head_size: int, dtype: Any) -> Any:
        of = (batch, capacity, heads, head_size, dtype)
        state = self.made.setdefault(of, super().init(*of, device="cpu"))
        return self.reset(state)


class NoFuture(Slots):
    """Rows of a chunk attend the whole chunk."""

    def step(self, state: dict[str, Any], query: Any, key: Any, value: Any) -> tuple[Any, Any]:
        start, end = state["length"], state["length"] + query.shape[2]
        state["key"][:, :, start:end], state["value"][:, :, start:end] = key, value
        state["length"] = end
        shown = torch.ones(query.shape[2], end, dtype=torch.bool)
        return attend(query, state["key"][:, :, :end], state["value"][:, :, :end], shown), state


class Stepless:
    """Has no step."""

    def init(self) -> None:
        return None
