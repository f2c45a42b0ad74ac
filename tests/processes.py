"""Commands in Python processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

Done = subprocess.CompletedProcess[str]

CONTROL = ("--backend=numpy", "--implementation=definition")
"""The control of plain attention. Without those of other operators their cases are not computed, which
takes a second."""


def python(*words: str, cwd: Path = ROOT, env: dict[str, str] | None = None, **more: Any) -> Done:
    """Python with these words, in the checkout; `env` is added to the environment."""
    asked: dict[str, Any] = {"timeout": 300, "capture_output": True, "text": True, **more}
    return subprocess.run([sys.executable, *words], cwd=cwd, env=os.environ | (env or {}), **asked)


def run(*words: str, **more: Any) -> Done:
    """`pytest ...` without the cache folder."""
    return python("-m", "pytest", "-p", "no:cacheprovider", "-q", *words, **more)
