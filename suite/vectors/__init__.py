"""The suite's cases as files, for runtimes that Python cannot call: the commands `vectors` and `vectors
judge` of docs/vectors.md. Needs the extra `vectors` (safetensors, ml_dtypes)."""
