"""Kernels without a fault, one method a step, of which a fault changes one."""
