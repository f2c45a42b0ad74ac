"""Vectors: the suite's cases as files, for runtimes that Python cannot call.

    attention-conformance vectors --level=smoke --output=VECTORS
    attention-conformance vectors judge ANSWERS --vectors=VECTORS

`docs/vectors.md` is for authors of runtimes. Needs the extra `vectors` (safetensors, ml_dtypes).
"""
