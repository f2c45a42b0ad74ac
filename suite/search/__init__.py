"""Random search for failing cases outside the catalogue: the command `search`, docs/sweeps.md."""
