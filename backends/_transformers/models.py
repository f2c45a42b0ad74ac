"""Modules of transformers with the code of models."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def modeling(model: str) -> Any:
    """The module with the code of a model, named as in transformers ("llama")."""
    return import_module(f"transformers.models.{model}.modeling_{model}")
