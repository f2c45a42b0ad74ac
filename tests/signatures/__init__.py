"""Functions and classes as people write them, whose signatures are not that of the framework's own
attention (docs/signatures.md)."""
