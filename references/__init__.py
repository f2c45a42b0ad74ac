"""The float64 definition of attention and independent second opinions, in NumPy alone."""
