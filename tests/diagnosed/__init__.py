"""Faulty attention as people write it, from public bug reports, and what a diagnosis must say of it.

expected    the type of an expectation, and the words for faults that several kernels have
faulty, kernels  the kernels and their expectations, written before there was any diagnosis
running     judges one kernel in a child process, and reads its verdict, diagnoses and lines
__main__    the table: `python -m tests.diagnosed`

The kernels are in `masks`, `scores`, `heads`, `tiles`, `precision`, `gradients`, `features`, `of_jax`,
`of_keras`, `layers` and `others`; `pairs` has two faults a kernel, `healthy` none.
"""
