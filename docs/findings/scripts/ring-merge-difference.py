import torch
from torch.distributed.tensor.experimental._context_parallel._attention import _SDPAMerger
def merged(first, second, first_lse, second_lse):
    merger = _SDPAMerger(convert_to_f32=True, seq_dim=2)
    for output, lse in ((first, first_lse), (second, second_lse)):
        merger.step(torch.full((1, 1, 1, 1), output), torch.full((1, 1, 1), lse), partial=False)
    return merger.results()[0].item()
got = merged(torch.inf, 0.0, 0.0, 0.0), merged(1.0, 0.1, -200.0, 200.0)
print("expected", (torch.inf, torch.tensor(0.1).item()))
print("got", repr(got))
print("DEVIATES" if got[0] != torch.inf and got[1] != torch.tensor(0.1).item() else "fixed")
