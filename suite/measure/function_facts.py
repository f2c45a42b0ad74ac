"""Facts that the worker knows of a user's function, for its timed calls."""

from __future__ import annotations

from dataclasses import dataclass

from attention_conformance.backends.protocol import Implementation


@dataclass(frozen=True)
class FunctionFacts:
    """Facts about a timed user's function.

    - `round_trip`: seconds of an empty sample in the child that runs the function; 0 without a child
    - `watched`: the function in a form that raises ForbiddenCall for calls that `--forbid` names
    - `notes`: sentences for people
    """

    round_trip: float = 0.0
    watched: Implementation | None = None
    notes: tuple[str, ...] = ()
