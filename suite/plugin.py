"""The pytest plugin, where it has always been called from; see `suite.run.plugin`."""

import os

# NumPy's threads spin on the small matrices of the reference, and slow each other down fivefold.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from attention_conformance.suite.shadows import refuse_shadows

refuse_shadows(4)  # before anything imports NumPy

from attention_conformance.suite.run.plugin import *  # noqa: E402, F403
