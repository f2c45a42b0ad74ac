import mlx.core as mx
from mlx_lm.models.deepseek_v3 import DeepseekV3Attention, ModelArgs
mx.set_default_device(mx.cpu)
layer = DeepseekV3Attention(ModelArgs(
    hidden_size=8, num_attention_heads=1, q_lora_rank=None, kv_lora_rank=4, qk_nope_head_dim=4,
    qk_rope_head_dim=4, v_head_dim=4,
))
x, hidden = mx.random.normal((1, 3, 8), key=mx.random.key(0)), mx.zeros((1, 1, 3, 3), dtype=mx.bool_)
def loss(weight):
    layer.q_proj.weight = weight
    return layer(x, hidden).square().sum()
gradient = mx.grad(loss)(layer.q_proj.weight)
plain, rotated = (abs(x).max().item() for x in (gradient[:4], gradient[4:]))
print("expected a gradient of 0 for both parts of the query, or for neither")
print("got", plain, "and", rotated)
print("DEVIATES" if plain > 0 and rotated == 0 else "fixed")
