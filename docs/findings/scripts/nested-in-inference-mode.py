import torch
x, offsets = torch.randn(5, 2, 8), torch.tensor([0, 2, 5])
with torch.no_grad():
    torch.nested.nested_tensor_from_jagged(x, offsets)
try:
    with torch.inference_mode():
        torch.nested.nested_tensor_from_jagged(x.clone(), offsets)  # a new array is taken
        got = torch.nested.nested_tensor_from_jagged(x, offsets).dim()
except RuntimeError as error:
    got = error
print("expected an answer, as under no_grad")
print("got", repr(got))
print("DEVIATES" if str(got) == "Cannot set version_counter for inference tensor" else "fixed")
