"""Where transformers keeps the code of its models."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def modeling(model: str) -> Any:
    """The module of a model's code, by the model's name there: "llama"."""
    return import_module(f"transformers.models.{model}.modeling_{model}")
