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


def rotate(x: Any, positions: Any, base: float) -> Any:
    """Halves of x (b, H, n, D) as pairs, rotated by positions (b, n)."""
    half = x.shape[-1] // 2
    theta = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = (positions[:, None, :, None] * theta).to(x.dtype)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    one, two = x[..., :half], x[..., half:]
    return torch.cat([one * cosine - two * sine, two * cosine + one * sine], -1)


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
        end = state[0].shape[2] - count
        return state[0][:, :, :end], state[1][:, :, :end]

    def reorder(self, state: State, samples: Any) -> State:
        return state[0][samples], state[1][samples]


class Coded(Growing):
    """Concatenates tokens that have been int8 codes, with a scale of every token and head."""

    last = 127

    def step(self, state: State, query: Any, key: Any, value: Any, **more: Any) -> Any:
        return super().step(state, query, self.kept(key), self.kept(value), **more)

    def kept(self, x: Any) -> Any:
        scale = (x.double().abs().amax(-1, keepdim=True) / self.last).clamp(min=2.0**-100)
        return ((x.double() / scale).round().clamp(-128, 127) * scale).to(x.dtype)


class CodedCoarsely(Coded):
    """Scales are four times as large: two of the eight bits are not used."""

    last = 32


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
        key, value = (state[name][:, :, :end] for name in ("key", "value"))
        return attend(query, key, value, self.shown(start, end)), state

    def shown(self, start: int, end: int) -> Any:
        return torch.arange(end) <= torch.arange(start, end)[:, None]

    def reset(self, state: dict[str, Any]) -> dict[str, Any]:
        state["length"] = 0
        return state


slots = Slots()


class NoFuture(Slots):
    """Rows of a chunk attend the whole chunk."""

    def shown(self, start: int, end: int) -> Any:
        return torch.ones(end - start, end, dtype=torch.bool)


class Serving:
    """Samples have lengths of their own and step alone; a tree joins at once, and one path stays."""

    def init(
        self, batch: int, capacity: int, heads: int, head_size: int, value_size: int, dtype: Any,
        device: Any,
    ) -> dict[str, Any]:  # fmt: skip
        sizes = {"key": head_size, "value": value_size}
        made = {
            name: torch.zeros(batch, capacity, heads, size, dtype=dtype, device=device)
            for name, size in sizes.items()
        }
        return {**made, "lengths": torch.zeros(batch, dtype=torch.long, device=device)}

    def step(
        self, state: dict[str, Any], query: Any, key: Any, value: Any, *,
        samples: Any = None, tree_mask: Any = None, document_starts: Any = None,
        positions: Any = None, rotary_base: float | None = None, scale: float | None = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        count, device = query.shape[2], query.device
        if rotary_base is not None:
            query, key = (rotate(x, positions, rotary_base) for x in (query, key))
        own = (
            torch.arange(len(state["lengths"]), device=device)
            if samples is None
            else samples.long()
        )
        places = state["lengths"][own][:, None] + torch.arange(count, device=device)
        for name, new in (("key", key), ("value", value)):
            state[name][own[:, None], places] = new.transpose(1, 2)
        state["lengths"][own] += count
        k, v = (state[name][own].transpose(1, 2) for name in ("key", "value"))
        slots = torch.arange(k.shape[2], device=device)
        shown = slots <= places[:, :, None]
        if document_starts is not None:
            shown = shown & (slots >= document_starts[:, :, None])
        if tree_mask is not None:
            first = places[:, :1, None]
            node = (slots - first).clamp(0, count - 1).expand(len(own), count, -1)
            drafted = tree_mask.expand(len(own), -1, -1).gather(2, node)
            shown = torch.where(slots < first, shown, drafted & (slots < first + count))
        return attend(query, k, v, shown[:, None], scale), state

    def reset(self, state: dict[str, Any], samples: Any = None) -> dict[str, Any]:
        state["lengths"][slice(None) if samples is None else samples.long()] = 0
        return state

    def crop(self, state: dict[str, Any], count: int, samples: Any = None) -> dict[str, Any]:
        state["lengths"][slice(None) if samples is None else samples.long()] -= count
        return state

    def keep(
        self, state: dict[str, Any], paths: Any, count: int, samples: Any = None
    ) -> dict[str, Any]:
        own = range(len(paths)) if samples is None else samples.tolist()
        for sample, path in zip(own, paths, strict=True):
            path = path[path >= 0].long()
            first = int(state["lengths"][sample]) - count
            for name in ("key", "value"):
                state[name][sample, first : first + len(path)] = state[name][sample][first + path]
            state["lengths"][sample] = first + len(path)
        return state


class Stepless:
    """Has no step."""

    def init(self) -> None:
        return None
