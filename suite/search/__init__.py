"""Randomised search beyond the table of cases; `python -m suite search`, see docs/search.md."""

CHECKS = ("values", "gradients")
"""The checks that cases are judged by."""
