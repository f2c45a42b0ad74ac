"""PyTorch over time."""

from attention_conformance.suite.measure import benchmark as _benchmark


class _Torch(_benchmark.Benchmark):
    backend = "torch"
    implementations = ["sdpa", "eager"]


class Forward(_benchmark.Forward, _Torch):
    cases = _benchmark.ids("gpt2-train", "bert-base-padded", "llama-decode", "vit-base-197")


class Decode(_benchmark.Decode, _Torch): ...


class DecodePaged(_benchmark.DecodePaged, _Torch): ...


class DecodeCodes(_benchmark.DecodeCodes, _Torch): ...


class DecodeLatent(_benchmark.DecodeLatent, _Torch): ...


class Backward(_benchmark.Backward, _Torch): ...


class Quality(_benchmark.Quality, _Torch):
    implementations = ["sdpa"]


class Memory(_benchmark.Memory, _Torch): ...


class Versions(_benchmark.Versions):
    modules = ["torch"]


class Conformance(_benchmark.Conformance):
    backend = "torch"

    def setup_cache(self) -> dict[str, int]:
        return _benchmark.count_cells(self.backend)
