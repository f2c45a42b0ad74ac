"""PyTorch over time."""

from suite.measure import benchmark as _benchmark


class Forward(_benchmark.Forward):
    backend = "torch"
    cases = _benchmark.ids("gpt2-train", "bert-base-padded", "llama-decode", "vit-base-197")
    implementations = ["sdpa", "eager"]


class Backward(_benchmark.Backward):
    backend = "torch"
    cases = _benchmark.ids("gpt2-train")
    implementations = ["sdpa", "eager"]


class Quality(_benchmark.Quality):
    backend = "torch"
    cases = _benchmark.ids("gpt2-train")
    implementations = ["sdpa"]


class Memory(_benchmark.Memory):
    backend = "torch"
    cases = _benchmark.ids("gpt2-train")
    implementations = ["sdpa", "eager"]


class Versions(_benchmark.Versions):
    modules = ["torch"]


class Conformance(_benchmark.Conformance):
    backend = "torch"

    def setup_cache(self) -> dict[str, int]:
        return _benchmark.counted(self.backend)
