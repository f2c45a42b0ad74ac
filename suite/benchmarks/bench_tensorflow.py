"""TensorFlow, with Keras on it, over time."""

from suite.measure import benchmark as _benchmark


class Forward(_benchmark.Forward):
    backend = "tf"
    cases = _benchmark.ids("gpt2-train", "bert-base-padded", "vit-base-197")
    implementations = ["keras-ops@function", "keras-ops@xla"]


class Backward(_benchmark.Backward):
    backend = "tf"
    cases = _benchmark.ids("gpt2-train")
    implementations = ["keras-ops@function"]


class Quality(_benchmark.Quality):
    backend = "tf"
    cases = _benchmark.ids("gpt2-train")
    implementations = ["keras-ops@function"]


# TensorFlow counts no memory on a CPU: there are no bytes to track.
class Memory(_benchmark.ProcessMemory):
    backend = "tf"
    cases = _benchmark.ids("gpt2-train")
    implementations = ["keras-ops@function"]


class Versions(_benchmark.Versions):
    modules = ["tensorflow", "keras"]


class Conformance(_benchmark.Conformance):
    backend = "tf"

    def setup_cache(self) -> dict[str, int]:
        return _benchmark.counted(self.backend)
