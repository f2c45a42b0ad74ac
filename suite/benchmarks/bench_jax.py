"""JAX over time. The adapter calls `jax.nn` through `jax.jit`, as JAX is used."""

from attention_conformance.suite.measure import benchmark as _benchmark


class _Jax(_benchmark.Benchmark):
    backend = "jax"
    implementations = ["jax-nn"]


class Forward(_benchmark.Forward, _Jax):
    cases = _benchmark.ids("gpt2-train", "bert-base-padded", "llama-decode", "vit-base-197")


class Decode(_benchmark.Decode, _Jax): ...


class DecodePaged(_benchmark.DecodePaged, _Jax): ...


class DecodeCodes(_benchmark.DecodeCodes, _Jax): ...


class DecodeLatent(_benchmark.DecodeLatent, _Jax): ...


class Backward(_benchmark.Backward, _Jax): ...


class Quality(_benchmark.Quality, _Jax): ...


class Memory(_benchmark.Memory, _Jax): ...


class Versions(_benchmark.Versions):
    modules = ["jax", "jaxlib"]


class Conformance(_benchmark.Conformance):
    backend = "jax"

    def setup_cache(self) -> dict[str, int]:
        return _benchmark.count_cells(self.backend)
