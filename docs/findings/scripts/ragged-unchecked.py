import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import dynamic_validate_inputs, ref_ragged_paged_attention
pages = jnp.zeros((3, 4, 2, 8)).at[:, :, 1].set(jnp.arange(3.0)[:, None, None])  # values 0, 1, 2 by page
def answered(table, offsets):
    arrays = jnp.ones((4, 1, 8)), pages, jnp.array([4, 4], "int32"), jnp.array(table, "int32"), jnp.array(offsets, "int32")
    dynamic_validate_inputs(*arrays, jnp.array([2], "int32"))
    return ref_ragged_paged_attention(*arrays, jnp.array([2], "int32"))[:, 0, 0].tolist()
try:
    got = answered([[0], [3]], [0, 1, 2])[1], answered([[0], [-1]], [0, 1, 2])[1], len(answered([[0], [1]], [0, 3, 2]))
except Exception as error:
    got = error
print("expected errors for the pages 3 and -1 of 3, and for offsets that decrease")
print("got", "page 2 twice, and 3 rows" if got == (2, 2, 3) else repr(got))
print("DEVIATES" if got == (2, 2, 3) else "fixed")
