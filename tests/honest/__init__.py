"""Honest variants: right implementations that round differently. None may ever fail."""

from __future__ import annotations

import numpy as np

from backends.protocol import Backend, DeclaredRounding, Implementation
from suite.faults.backend import KernelBackend
from suite.faults.kernels.cached import CachedKernel
from suite.faults.kernels.centred import (
    CentredAttended,
    CentredByConstant,
    CentredEager,
    CentredKeys,
    CentredRestored,
)
from suite.faults.kernels.dropout import Dropping
from suite.faults.kernels.encoder import EncoderDifferentiable, EncoderEager
from suite.faults.kernels.gradient import (
    Differentiable,
    DifferentiableEager,
    DifferentiableFused,
    DifferentiableLowest,
    DifferentiableRecomputed,
)
from suite.faults.kernels.layer import LayerEager, MultiHeadKernel
from suite.faults.kernels.layer_gradient import (
    AdditiveDifferentiable,
    Arrays,
    ConcatDifferentiable,
    DotDifferentiable,
    LayerDifferentiable,
    MaskedDifferentiable,
    SelfAttentionDifferentiable,
)
from suite.faults.kernels.merge import MergeInTurn, MergeKernel
from suite.faults.kernels.norm_gradient import (
    BatchNormDifferentiable,
    LayerNormDifferentiable,
    Standard,
    rounded,
    summed_by_rows,
)
from suite.faults.kernels.packed import PackedKernel
from suite.faults.kernels.paged import PagedKernel
from suite.faults.kernels.paged_write import PagedWriteKernel
from suite.faults.kernels.rotary import RotaryByTable, RotaryKernel, RotaryTableCast
from suite.faults.kernels.variants import EagerStored, FlashFused, MergedChunks, StepByStep
from suite.spec.dtypes import round_to
from suite.spec.inputs import Inputs
from tests.honest.attention import (
    AlibiBaseTwo,
    AlibiBeforeTheScale,
    AlibiStored,
    ExpBaseTwo,
    Float64Inside,
    Flushed,
    FusedNormalised,
    HeadsInside,
    NanRows,
    OnlineTiles1,
    OnlineTiles16,
    OnlineTiles64,
    ReversedKeys,
    ScaleOnBothSides,
    SequentialSums,
    UniformRows,
    WeightsByLogSumExp,
)
from tests.honest.cached import (
    CachedConcatenated,
    CachedEager,
    CachedInPages,
    CachedRolled,
    CachedStepByStep,
    CachedTreeBranchByBranch,
    CachedWrittenFirst,
)
from tests.honest.latent import LATENTS
from tests.honest.layers import (
    LayerBiasesAsFeatures,
    LayerDividedScores,
    LayerExact,
    LayerFloat64Inside,
    LayerFused,
    LayerGroupsTogether,
    LayerHeadByHead,
    LayerHeadsSummed,
    LayerKeyBiasLeftOut,
    LayerKeysFirst,
    LayerNanRows,
    LayerOnlineSoftmax,
    LayerPackedProjection,
    LayerScaledScores,
    LayerSharedDropout,
    LayerStepwise,
    LayerUniformRows,
)
from tests.honest.one_head import (
    AdditiveEager,
    AdditiveExact,
    AdditiveLoops,
    AdditiveStepwise,
    BatchNormFolded,
    BatchNormOnePass,
    BatchNormStepwise,
    BatchNormTwoPasses,
    ConcatEager,
    ConcatExact,
    DotEager,
    DotExact,
    DotScaledQuery,
    LayerNormFolded,
    LayerNormOnePass,
    LayerNormStepwise,
    LayerNormTwoPasses,
    MaskedEager,
    MaskedExact,
    MaskedUniform,
    SelfAttentionEager,
    SelfAttentionExact,
)
from tests.honest.operators import (
    BatchNormChain,
    BatchNormUncentred,
    DifferentiableBlocks,
    DroppingByBlocks,
    DroppingFused,
    DroppingShared,
    EncoderExact,
    LayerNormChain,
    LayerNormUncentred,
    MergeByLogistic,
    MergeOfFloat64,
    MergeRunningSum,
    PackedAllPairs,
    PackedEager,
    PackedPadded,
    RotaryByExponential,
    RotaryEager,
    RotaryOfFloat64,
)
from tests.honest.paged import (
    PagedByPages,
    PagedEager,
    PagedInPoolOrder,
    PagedWholeTables,
    WriteByPages,
)
from tests.honest.quantized import OF_CODES
from tests.honest.split import SPLIT
from tests.honest.state import AnswersKeptByValues, VisiblePairsKept, WorkspaceCleared
from tests.honest.tiled import (
    CubicExp,
    GroupedRows,
    InPlace,
    LazilyRescaled,
    MergedHalves,
    MergedInTurn,
    OnlineTiles8,
    OnlineTiles128,
    RingBalanced,
    WholeTilesFlushed,
)


class LayerNarrowBias(LayerDifferentiable):
    """The gradient of the output bias is a sum in bfloat16, as it declares."""

    rounding = DeclaredRounding(narrow_biases={"bf16": ("output_bias",)})

    def gradients(self, arrays, cotangent, inputs):
        gradients = super().gradients(arrays, cotangent, inputs)
        if "output_bias" in gradients and inputs.dtype.name == "bf16":
            gradients["output_bias"] = summed_by_rows(cotangent, inputs)
        return gradients


class SelfAttentionDifferentiatedInSteps(SelfAttentionDifferentiable):
    """Self-attention whose backward pass stores every step."""

    numerics = "eager"

    def step(self, x: np.ndarray, inputs: Inputs) -> np.ndarray:
        return round_to(x, inputs.dtype)


class SelfAttentionOneProduct(SelfAttentionDifferentiable):
    """Self-attention whose input takes its gradient from one product, in working precision."""

    def together(self, parts: Arrays, inputs: Inputs) -> np.ndarray:
        work = np.float64 if inputs.dtype.name == "f64" else np.float32
        total: np.ndarray = np.sum([x.astype(work) for x in parts.values()], 0)
        return total.astype(np.float64)


class LayerNormNarrowStatistics(LayerNormDifferentiable):
    """Mean and root reach the backward pass in 16 bits, as it declares."""

    rounding = DeclaredRounding(narrow_statistics=("bf16", "f16"))

    def standard(self, arrays: Arrays, inputs: Inputs) -> Standard:
        standard = super().standard(arrays, inputs)
        return rounded(standard, inputs) if inputs.dtype.is_half else standard


class LayerNormNarrowSums(LayerNormDifferentiable):
    """The gradients of gain and offset are sums in 16 bits, as it declares."""

    rounding = DeclaredRounding(narrow_biases=dict.fromkeys(("bf16", "f16"), ("gain", "offset")))

    def gain_gradient(self, dy: np.ndarray, standard: Standard, inputs: Inputs) -> np.ndarray:
        if not inputs.dtype.is_half:
            return super().gain_gradient(dy, standard, inputs)
        return summed_by_rows(round_to(dy * standard.normal, inputs.dtype), inputs)

    def offset_gradient(self, dy: np.ndarray, inputs: Inputs) -> np.ndarray:
        if not inputs.dtype.is_half:
            return super().offset_gradient(dy, inputs)
        return summed_by_rows(dy, inputs)


class CompiledPlain(Differentiable):
    """A compiled kernel that computes what it was compiled from."""

    mode = "compiled"


class CompiledFused(DifferentiableFused):
    """A compiled kernel that stores weights in the case's dtype."""

    mode = "compiled"


class CompiledOnline(OnlineTiles16):
    """A compiled kernel with an online softmax and no derivative."""

    mode = "compiled"
    refusals = {"gradient": "the compiled program is that of inference"}


class CompiledLayer(MultiHeadKernel):
    """A compiled layer that computes what it was compiled from."""

    mode = "compiled"


HONEST: tuple[type[Implementation], ...] = (
    OnlineTiles16,
    OnlineTiles1,
    OnlineTiles64,
    OnlineTiles8,
    OnlineTiles128,
    WholeTilesFlushed,
    LazilyRescaled,
    CubicExp,
    GroupedRows,
    InPlace,
    RingBalanced,
    ReversedKeys,
    FlashFused,
    FusedNormalised,
    EagerStored,
    StepByStep,
    ExpBaseTwo,
    MergedChunks,
    MergedHalves,
    MergedInTurn,
    WeightsByLogSumExp,
    AnswersKeptByValues,
    VisiblePairsKept,
    WorkspaceCleared,
    Float64Inside,
    SequentialSums,
    ScaleOnBothSides,
    NanRows,
    UniformRows,
    Flushed,
    HeadsInside,
    Differentiable,
    DifferentiableFused,
    DifferentiableEager,
    DifferentiableBlocks,
    DifferentiableRecomputed,
    DifferentiableLowest,
    CentredKeys,
    CentredEager,
    CentredAttended,
    CentredByConstant,
    CentredRestored,
    LayerDifferentiable,
    LayerNarrowBias,
    AdditiveDifferentiable,
    ConcatDifferentiable,
    DotDifferentiable,
    MaskedDifferentiable,
    SelfAttentionDifferentiable,
    SelfAttentionDifferentiatedInSteps,
    SelfAttentionOneProduct,
    LayerNormDifferentiable,
    LayerNormUncentred,
    LayerNormChain,
    LayerNormNarrowStatistics,
    LayerNormNarrowSums,
    BatchNormDifferentiable,
    BatchNormUncentred,
    BatchNormChain,
    LayerExact,
    LayerFused,
    LayerEager,
    LayerStepwise,
    LayerScaledScores,
    LayerDividedScores,
    LayerKeysFirst,
    LayerHeadByHead,
    LayerHeadsSummed,
    LayerPackedProjection,
    LayerBiasesAsFeatures,
    LayerKeyBiasLeftOut,
    LayerGroupsTogether,
    LayerOnlineSoftmax,
    LayerFloat64Inside,
    LayerNanRows,
    LayerUniformRows,
    LayerSharedDropout,
    SelfAttentionEager,
    SelfAttentionExact,
    AdditiveExact,
    AdditiveEager,
    AdditiveLoops,
    AdditiveStepwise,
    ConcatExact,
    ConcatEager,
    DotExact,
    DotEager,
    DotScaledQuery,
    MaskedExact,
    MaskedEager,
    MaskedUniform,
    LayerNormTwoPasses,
    LayerNormOnePass,
    LayerNormFolded,
    LayerNormStepwise,
    BatchNormTwoPasses,
    BatchNormFolded,
    BatchNormOnePass,
    BatchNormStepwise,
    CompiledPlain,
    CompiledFused,
    CompiledOnline,
    CompiledLayer,
    RotaryKernel,
    RotaryOfFloat64,
    RotaryByExponential,
    RotaryByTable,
    RotaryTableCast,
    RotaryEager,
    AlibiStored,
    AlibiBeforeTheScale,
    AlibiBaseTwo,
    PackedKernel,
    Dropping,
    DroppingByBlocks,
    DroppingFused,
    DroppingShared,
    PackedAllPairs,
    PackedPadded,
    PackedEager,
    PagedKernel,
    PagedByPages,
    PagedWholeTables,
    PagedInPoolOrder,
    PagedEager,
    PagedWriteKernel,
    WriteByPages,
    CachedKernel,
    CachedConcatenated,
    CachedRolled,
    CachedWrittenFirst,
    CachedInPages,
    CachedEager,
    CachedStepByStep,
    CachedTreeBranchByBranch,
    *LATENTS,
    *OF_CODES,
    *SPLIT,
    MergeKernel,
    MergeInTurn,
    MergeRunningSum,
    MergeByLogistic,
    MergeOfFloat64,
    EncoderExact,
    EncoderEager,
    EncoderDifferentiable,
)
"""Every honest variant, in the order in which they are judged."""


def honest(device: str = "cpu") -> Backend:
    """The honest variants as a third-party backend."""
    return KernelBackend("honest", HONEST, device)
