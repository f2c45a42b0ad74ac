"""Vectors: the suite's cases as files, for runtimes that Python cannot call.

    attention-conformance vectors --level=smoke --output=VECTORS
    attention-conformance vectors judge ANSWERS --vectors=VECTORS

1. The first command writes a folder: one safetensors file per case, and `index.json`, which describes the
   cases. A file has inputs, dense masks, the expected output, log-sum-exp and gradients in float64, and
   the bound of every numerics class.
2. The runtime, in any language, writes a folder of answers: one file of the same name per supported case,
   and `runtime.json`, which describes the runtime.
3. The second command judges the answers with the same checks, oracle and records as any backend.

`docs/vectors.md` is for authors of runtimes.

    asked     the cases and election probes of a level
    index     the schemas of `index.json` and `runtime.json`
    tensors   reading and writing of safetensors files
    export    writes a folder of vectors
    answers   reads a folder of answers
    runtime   the runtime as a backend, whose implementations return the answers of the files
    judge     the plan of a run over stored answers
    command   the command line

Needs the extra `vectors` (safetensors, ml_dtypes).
"""
