"""Tests of the suite itself: mutants, honest variants, miniatures, adapters."""
