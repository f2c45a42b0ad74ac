"""PyTorch over time."""

from suite.measure import benchmark as _benchmark


class _Torch(_benchmark.Benchmark):
    backend = "torch"
    implementations = ["sdpa", "eager"]


class Forward(_Torch, _benchmark.Forward):
    cases = _benchmark.ids("gpt2-train", "bert-base-padded", "llama-decode", "vit-base-197")


class Decode(_Torch, _benchmark.Decode):
    cases = _benchmark.ids("llama-cache", "llama-cache-batch", "llama-cache-server")
    implementations = ["textbook-cached-slots"]


class DecodePaged(_Torch, _benchmark.Decode):
    cases = _benchmark.ids("llama-paged-decode")
    implementations = ["textbook-paged"]


class DecodeCodes(_Torch, _benchmark.Decode):
    cases = _benchmark.ids("llama-int8-decode")
    implementations = ["textbook-quantized", "textbook-quantized-folded"]


class DecodeLatent(_Torch, _benchmark.Decode):
    cases = _benchmark.ids("deepseek-decode")
    implementations = ["textbook-latent-absorbed"]


class Backward(_Torch, _benchmark.Backward): ...


class Quality(_Torch, _benchmark.Quality):
    implementations = ["sdpa"]


class Memory(_Torch, _benchmark.Memory): ...


class Versions(_benchmark.Versions):
    modules = ["torch"]


class Conformance(_benchmark.Conformance):
    backend = "torch"

    def setup_cache(self) -> dict[str, int]:
        return _benchmark.counted(self.backend)
