"""What JAX keeps, and what of it is forgotten."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from attention_conformance.suite.run import jax_caches


def test_what_jax_lowered_is_forgotten_and_not_compiled_again() -> None:
    jax = pytest.importorskip("jax")
    caches = [getattr(sys.modules[module], name) for module, name in jax_caches.LOWERED]

    def kept() -> int:
        return sum(cache.cache_info().currsize for cache in caches)

    x = jax.device_put(np.ones((3, 5), np.float32))
    jax_caches.forget_lowered()
    first = x @ x.T
    assert kept()
    jax_caches.forget_lowered()
    assert not kept()
    assert np.array_equal(x @ x.T, first)
    assert not kept(), "the executable went, too"


def test_programs_are_forgotten_before_there_is_no_memory_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jax = pytest.importorskip("jax")
    if not jax_caches.areas():
        pytest.skip("no system says how many areas of memory there are")
    x = jax.device_put(np.ones((3, 5), np.float32))
    product = jax.jit(lambda x: jax.numpy.tanh(x @ x.T))
    first, before = product(x), jax_caches.areas()
    jax_caches.forget(jax_caches.COUNT_EVERY)
    assert product._cache_size() == 1, "few areas: nothing is to be forgotten"
    monkeypatch.setattr(jax_caches, "AREAS", before - 1)
    jax_caches.forget(jax_caches.COUNT_EVERY - jax_caches.FORGET_EVERY)
    assert product._cache_size() == 1, "not yet"
    jax_caches.forget(jax_caches.COUNT_EVERY)
    assert product._cache_size() == 0
    assert jax_caches.areas() < before
    assert np.array_equal(product(x), first)
