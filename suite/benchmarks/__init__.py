"""asv's benchmarks, one module per framework, so that a process imports one. See docs/speed.md."""

import sys
from pathlib import Path

# An environment that asv has made for a framework's release has the frameworks and not the suite.
try:
    import attention_conformance.suite.measure  # noqa: F401
except ImportError:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
