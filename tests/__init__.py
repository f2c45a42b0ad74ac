"""Tests of the suite itself: honest variants, miniatures, adapters."""
