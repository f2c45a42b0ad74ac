"""Command line: `attention-conformance COMMAND`; see `suite.commands`."""

import os
import sys

# Before NumPy is imported, as in `suite.plugin`.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from attention_conformance.suite.shadows import refuse_shadows

refuse_shadows(2)  # before anything imports NumPy

from attention_conformance.suite.commands import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
