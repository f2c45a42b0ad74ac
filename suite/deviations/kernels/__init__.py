"""Right kernels with one method a step; a fault replaces one of these methods."""
