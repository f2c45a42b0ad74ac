"""What is asked of a user's function beside its time: forbidden calls (`--forbid`)."""

from __future__ import annotations

from dataclasses import dataclass

from attention_conformance.backends.protocol import Implementation


@dataclass(frozen=True)
class OwnCode:
    """What a timed user's function is asked besides.

    - `trip`: seconds of an empty sample in the child that runs the function
    - `watched`: the function, which raises ForbiddenCall for calls that `--forbid` names
    - `notes`: the limits that this system does not enforce, as sentences
    """

    trip: float = 0.0
    watched: Implementation | None = None
    notes: tuple[str, ...] = ()
