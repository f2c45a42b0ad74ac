"""Old names of `suite.front.process`, for sweeps."""

from pathlib import Path

from suite.front.process import place_in
from suite.front.process import write_stacks as write_to

__all__ = ["where", "write_to"]


def where(path: Path) -> str:
    """Where the process stood that the watchdog ended and that wrote into `path`; "" for none."""
    return place_in(path.read_text(errors="replace")) if path.is_file() else ""
