import torch
q, k = torch.zeros(2, 2, 0, 8), torch.zeros(2, 2, 5, 8)
print("expected an output of shape (2, 2, 0, 8)")
print("got", end=" ", flush=True)  # the process ends here
print(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k)[0].shape)
print("fixed")
