"""TensorFlow, with Keras on it, over time."""

from suite.measure import benchmark as _benchmark


class _Tensorflow(_benchmark.Benchmark):
    backend = "tf"
    implementations = ["keras-ops@function"]


class Forward(_Tensorflow, _benchmark.Forward):
    cases = _benchmark.ids("gpt2-train", "bert-base-padded", "vit-base-197")
    implementations = ["keras-ops@function", "keras-ops@xla"]


class Decode(_Tensorflow, _benchmark.Decode):
    cases = _benchmark.ids("llama-cache", "llama-cache-batch", "llama-cache-server")
    implementations = ["textbook-cached-slots"]


class DecodePaged(_Tensorflow, _benchmark.Decode):
    cases = _benchmark.ids("llama-paged-decode")
    implementations = ["textbook-paged"]


class DecodeCodes(_Tensorflow, _benchmark.Decode):
    cases = _benchmark.ids("llama-int8-decode")
    implementations = ["textbook-quantized", "textbook-quantized-folded"]


class DecodeLatent(_Tensorflow, _benchmark.Decode):
    cases = _benchmark.ids("deepseek-decode")
    implementations = ["textbook-latent-absorbed"]


class Backward(_Tensorflow, _benchmark.Backward): ...


class Quality(_Tensorflow, _benchmark.Quality): ...


# TensorFlow counts no memory on a CPU: there are no bytes to track.
class Memory(_Tensorflow, _benchmark.ProcessMemory): ...


class Versions(_benchmark.Versions):
    modules = ["tensorflow", "keras"]


class Conformance(_benchmark.Conformance):
    backend = "tf"

    def setup_cache(self) -> dict[str, int]:
        return _benchmark.counted(self.backend)
