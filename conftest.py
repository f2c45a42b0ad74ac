"""Make the suite's options known to every way of calling pytest from this checkout."""

import os

# NumPy's threads spin on the small matrices of the reference, and slow each other down fivefold.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

pytest_plugins = ["suite.plugin"]
