"""Honest kernels that answer every question of `suite.spec.elections` as they are told to."""
