"""PyTorch: textbook attention, `scaled_dot_product_attention` in all its kernels, flex_attention, layers.

torch is imported when the backend is made.
"""
