"""Faulty attention as people write it, from public bug reports, and what a diagnosis must say of it.

expected    the type of an expectation, and the words for faults that several kernels have
textbook    right attention in named stages
rows        the type of a row: a stage of the textbook that differs, and the fault
kernels     all kernels of the corpus

The rows are in `masks`, `scores`, `heads`, `tiles`, `precision` and `gradients`; `of_torch`,
`of_jax` and `of_keras` make functions of them. Kernels that no row describes are in `layers` and
`others`.
"""
