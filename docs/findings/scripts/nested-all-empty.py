import torch
def nested(*lengths):
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(torch.randn(sum(lengths), 2, 8), offsets).transpose(1, 2)
def lengths_of(x):
    return torch.nn.functional.scaled_dot_product_attention(x, x, x).transpose(1, 2).offsets().diff().tolist()
print("expected [3, 0] and [0, 0]")
raised = ""
try:
    empty = lengths_of(nested(0, 0))
except RuntimeError as error:
    empty = raised = str(error)
print("got", lengths_of(nested(3, 0)), "and", empty)
print("DEVIATES" if "non-zero numel" in raised else "fixed")
