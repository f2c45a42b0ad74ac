"""TensorFlow, with Keras on it, over time."""

from attention_conformance.suite.measure import benchmark as _benchmark


class _Tensorflow(_benchmark.Benchmark):
    backend = "tf"
    implementations = ["keras-ops@function"]


class Forward(_benchmark.Forward, _Tensorflow):
    cases = _benchmark.ids("gpt2-train", "bert-base-padded", "vit-base-197")
    implementations = ["keras-ops@function", "keras-ops@xla"]


class Decode(_benchmark.Decode, _Tensorflow): ...


class DecodePaged(_benchmark.DecodePaged, _Tensorflow): ...


class DecodeCodes(_benchmark.DecodeCodes, _Tensorflow): ...


class DecodeLatent(_benchmark.DecodeLatent, _Tensorflow): ...


class Backward(_benchmark.Backward, _Tensorflow): ...


class Quality(_benchmark.Quality, _Tensorflow): ...


# TensorFlow counts no memory on a CPU: there are no bytes to track.
class Memory(_benchmark.ProcessMemory, _Tensorflow): ...


class Versions(_benchmark.Versions):
    modules = ["tensorflow", "keras"]


class Conformance(_benchmark.Conformance):
    backend = "tf"

    def setup_cache(self) -> dict[str, int]:
        return _benchmark.count_cells(self.backend)
