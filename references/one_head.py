"""Attention of one head without value projection: scores (B, Lq, Lk) of any kind, values (B, Lk, Ev)."""

from __future__ import annotations

from attention_conformance.references.composition import Composition, Problem
from attention_conformance.references.primitives.arranged import Reshaped
from attention_conformance.references.primitives.attend import Attend, Weights
from attention_conformance.references.primitives.bias import Biased
from attention_conformance.references.primitives.pairs import Pairs
from attention_conformance.references.tape import Node


def as_head(x: Node) -> Reshaped:
    """Returns x (B, L, width) as one head, (B, 1, L, width)."""
    B, L, width = x.shape
    return Reshaped(x, (B, 1, L, width))


def attend_scores(problem: Problem, scores: Node) -> Composition:
    """Returns the output (B, Lq, Ev) for scores (B, Lq, Lk), and the weights if requested."""
    s = problem.sizes
    return attend_head_scores(problem, Reshaped(scores, (s.B, 1, s.Lq, s.Lk)), Pairs.of(problem))


def attend_head_scores(problem: Problem, scores: Node, pairs: Pairs) -> Composition:
    """Returns the output (B, Lq, Ev) for scores (B, 1, Lq, Lk), and the weights if requested. A bias of
    the inputs is added to the scores first."""
    if problem.inputs.bias is not None:
        scores = Biased(problem.u, scores, problem.leaf("bias"))
    attend = Attend(problem.u, scores, as_head(problem.leaf("value")), pairs)
    return layer_composition(problem, Reshaped(attend, problem.inputs.full_shape("output")), attend)


def layer_composition(problem: Problem, output: Node, attend: Attend) -> Composition:
    """Returns `output`, and if requested the weights of `attend`: (B, H, Lq, Lk), or averaged over
    heads."""
    further_outputs, returned = {}, problem.inputs.returned
    if returned != "none":
        weights = Weights(attend, returned == "average")
        further_outputs["weights"] = Reshaped(weights, problem.inputs.full_shape("weights"))
    return Composition(output, further_outputs, attend.pairs.keys)
