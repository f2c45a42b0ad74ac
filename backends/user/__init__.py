"""Users' functions and layers as implementations; each kind has a table of parameters."""
