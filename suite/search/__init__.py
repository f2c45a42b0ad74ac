"""Randomised search for failing cases outside the catalogue: `python -m suite search`, docs/sweeps.md."""
