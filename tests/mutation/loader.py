"""The hook of a process that imports a framework with one change: a plugin of pytest, loaded first.

The change stands in the environment. The module's file is read, changed and compiled as it is imported;
nothing is written.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import decode_source
from types import CodeType, ModuleType
from typing import Any

from tests.mutation.changes import Change

VARIABLE = "ATTENTION_MUTANT"


class _Changed(SourceFileLoader):
    """Loads a module from its file with the change, past what Python keeps compiled."""

    def __init__(self, name: str, path: str, change: Change) -> None:
        super().__init__(name, path)
        self._change = change

    def get_code(self, fullname: str) -> CodeType:
        text = self._change.applied(decode_source(self.get_data(self.path)))
        code: Any = compile(text, self.path, "exec", dont_inherit=True)
        return code


class _Finder(MetaPathFinder):
    def __init__(self, change: Change) -> None:
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._change.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Changed(fullname, spec.origin, self._change)
        return spec


if os.environ.get(VARIABLE):
    sys.meta_path.insert(0, _Finder(Change(**json.loads(os.environ[VARIABLE]))))
