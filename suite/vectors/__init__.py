"""Vectors: the cases of the suite as files, for runtimes that Python cannot call.

    python -m suite vectors --level=smoke --output=VECTORS
    python -m suite vectors judge ANSWERS --vectors=VECTORS

The first command writes a folder: for every case a safetensors file with inputs, masks in dense form, the
expected output, log-sum-exp and gradients in float64, and the bound of every numerics class; and
`index.json`, which says what is asked. A runtime in any language reads it, and writes a folder of
answers: for every case that it supports a file of the same name, and `runtime.json`, which says who
answered. The second command judges the answers as a function of a framework is judged, by the same
checks, oracle and records. `docs/vectors.md` is written for the person of that runtime.

    asked     what a level asks of a runtime: cases, and the probes of elections
    index     the schema of `index.json` and of `runtime.json`
    tensors   safetensors files: the one place that knows the library
    export    from what is asked to a folder of vectors
    answers   a folder of answers, read
    runtime   the runtime as a backend, whose implementations return what the files hold
    judge     the plan of a run over stored answers
    command   the command line

Needs the extra `vectors` (safetensors, ml_dtypes).
"""
