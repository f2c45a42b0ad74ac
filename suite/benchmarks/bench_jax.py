"""JAX over time. The adapter calls `jax.nn` through `jax.jit`, as JAX is used."""

from suite.measure import benchmark as _benchmark


class _Jax(_benchmark.Benchmark):
    backend = "jax"
    implementations = ["jax-nn"]


class Forward(_Jax, _benchmark.Forward):
    cases = _benchmark.ids("gpt2-train", "bert-base-padded", "llama-decode", "vit-base-197")


class Decode(_Jax, _benchmark.Decode):
    cases = _benchmark.ids("llama-cache", "llama-cache-batch", "llama-cache-server")
    implementations = ["textbook-cached-slots"]


class DecodePaged(_Jax, _benchmark.Decode):
    cases = _benchmark.ids("llama-paged-decode")
    implementations = ["textbook-paged"]


class DecodeCodes(_Jax, _benchmark.Decode):
    cases = _benchmark.ids("llama-int8-decode")
    implementations = ["textbook-quantized", "textbook-quantized-folded"]


class DecodeLatent(_Jax, _benchmark.Decode):
    cases = _benchmark.ids("deepseek-decode")
    implementations = ["textbook-latent-absorbed"]


class Backward(_Jax, _benchmark.Backward): ...


class Quality(_Jax, _benchmark.Quality): ...


class Memory(_Jax, _benchmark.Memory): ...


class Versions(_benchmark.Versions):
    modules = ["jax", "jaxlib"]


class Conformance(_benchmark.Conformance):
    backend = "jax"

    def setup_cache(self) -> dict[str, int]:
        return _benchmark.counted(self.backend)
