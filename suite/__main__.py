"""Command line: `python -m suite COMMAND`; see `suite.run.commands`."""

import os
import sys

# As in `suite.plugin`, and before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from suite.run.commands import main

if __name__ == "__main__":
    sys.exit(main())
