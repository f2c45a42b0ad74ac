import torch
from executorch.extension.llm.custom_ops import custom_ops
from executorch.examples.models.llama.source_transformation.custom_kv_cache import CustomRingKVCache
q, k, v = torch.randn(3, 1, 1, 9, 8, generator=torch.Generator().manual_seed(0))
def rows(*chunks):  # a window of 3 keys
    ring, first, answers = CustomRingKVCache(1, 3, 1, 8), 0, []
    for n in chunks:
        at = slice(first, first + n)
        keys, values = (x.transpose(1, 2) for x in ring.update(torch.arange(at.start, at.stop), k[:, :, at], v[:, :, at]))
        mask = ring.create_causal_mask_for_ring_buffer(first, n)
        answers.append(torch.ops.llama.custom_sdpa(q[:, :, at].transpose(1, 2), keys, values, 0, mask))
        first += n
    return torch.cat(answers, 1)
one_by_one = rows(*[1] * 9)
errors = [float((rows(*chunks) - one_by_one).abs().max()) for chunks in ((3, 3, 3), (3, 6))]
print("expected errors next to 0 for chunks of 3, 3, 3 and of 3, 6 tokens")
print("got", errors)
print("DEVIATES" if errors[0] < 1e-5 and errors[1] > 0.1 else "fixed")
