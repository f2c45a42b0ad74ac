"""The names that your own adapter imports; docs/backend.md shows a complete adapter.

    from attention_conformance.adapter import Backend, Declared, Implementation, PreparedCall

- `Backend`, `Implementation`, `PreparedCall`: a framework, a way to compute, and a call of the framework.
- `Kernel`, `FrameworkFunction`, `Parameter`: an attention function as a row, and its implementation.
- `Layer`, `FrameworkLayer`: a layer as a row, and its implementation.
- `Declared`, `DeclaredRounding`, `Limits`: what an implementation declares.
- `split_native`, `dense_of`, `merged_bias`, `rank4`, `full`: masks and biases as arguments of a call.
- `BackendUnavailable`, `ForwardOnly`, `NoKernel`, `UsageError`: the errors that an adapter raises.
"""

from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.kernel import FrameworkFunction, Kernel
from attention_conformance.backends.layer import FrameworkLayer, Layer
from attention_conformance.backends.masks import dense_of, full, merged_bias, rank4, split_native
from attention_conformance.backends.protocol import (
    Backend,
    BackendUnavailable,
    Declared,
    DeclaredRounding,
    ForwardOnly,
    Implementation,
    Limits,
    NoKernel,
    PreparedCall,
    UsageError,
    needed,
)

__all__ = [
    "Backend",
    "BackendUnavailable",
    "Declared",
    "DeclaredRounding",
    "ForwardOnly",
    "FrameworkFunction",
    "FrameworkLayer",
    "Implementation",
    "Kernel",
    "Layer",
    "Limits",
    "NoKernel",
    "Parameter",
    "PreparedCall",
    "UsageError",
    "dense_of",
    "full",
    "merged_bias",
    "needed",
    "rank4",
    "split_native",
]
