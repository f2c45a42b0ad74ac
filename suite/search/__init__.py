"""Randomised search beyond the table of cases; `python -m suite search`, see docs/search.md."""
