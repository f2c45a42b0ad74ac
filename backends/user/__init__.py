"""People's own functions and layers as implementations, each kind a table of parameters (see
`backends.binder`) and a few lines."""
