"""JAX over time. The adapter calls `jax.nn` through `jax.jit`, as JAX is used."""

from suite.measure import benchmark as _benchmark


class Forward(_benchmark.Forward):
    backend = "jax"
    cases = _benchmark.ids("gpt2-train", "bert-base-padded", "llama-decode", "vit-base-197")
    implementations = ["jax-nn"]


class Backward(_benchmark.Backward):
    backend = "jax"
    cases = _benchmark.ids("gpt2-train")
    implementations = ["jax-nn"]


class Quality(_benchmark.Quality):
    backend = "jax"
    cases = _benchmark.ids("gpt2-train")
    implementations = ["jax-nn"]


class Memory(_benchmark.Memory):
    backend = "jax"
    cases = _benchmark.ids("gpt2-train")
    implementations = ["jax-nn"]


class Versions(_benchmark.Versions):
    modules = ["jax", "jaxlib"]


class Conformance(_benchmark.Conformance):
    backend = "jax"

    def setup_cache(self) -> dict[str, int]:
        return _benchmark.counted(self.backend)
