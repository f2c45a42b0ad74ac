import numpy as np
from flax import linen
x = np.random.default_rng(0).standard_normal((4, 48)).astype("float32") + 4096
got = linen.LayerNorm().apply({"params": {"scale": np.ones(48), "bias": np.zeros(48)}}, x)
wide = x.astype("float64")
want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-6)
print("expected the largest", np.abs(want).max())
print("got", np.abs(got).max())
print("DEVIATES" if np.abs(got - want).max() > 0.1 else "fixed")
