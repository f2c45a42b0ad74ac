"""The control as a backend."""

from __future__ import annotations

from backends._numpy.attention import Definition
from backends._numpy.cached import ChunkByChunk
from backends._numpy.engine import NumpyEngine
from backends._numpy.latent import ProjectedKeys
from backends._numpy.merge import WeightedSum
from backends._numpy.packed import SegmentBySegment
from backends._numpy.paged import SampleBySample
from backends._numpy.paged_write import TokenByToken
from backends._numpy.quantized import NearestCodes, ScaledCodes
from backends._numpy.rotary import ComplexRotation
from backends.protocol import Implementation


class NumpyBackend(NumpyEngine):
    """NumPy on the CPU, with reference implementations."""

    name = "numpy"

    def implementations(self) -> list[Implementation]:
        return [
            Definition(self), ComplexRotation(self), SegmentBySegment(self), SampleBySample(self),
            TokenByToken(self), ChunkByChunk(self), ProjectedKeys(self), ScaledCodes(self),
            NearestCodes(self),
            WeightedSum(self),
        ]  # fmt: skip
