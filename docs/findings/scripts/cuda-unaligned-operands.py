import torch
attention = torch.nn.functional.scaled_dot_product_attention
if torch.cuda.is_available():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 16, device="cuda", dtype=torch.bfloat16) for n in (31, 33, 33))
    mask = torch.rand(2, 3, 31, 33, device="cuda") > 0.3
    moved = torch.empty(q.numel() + 1, device="cuda", dtype=q.dtype)[1:].view(q.shape).copy_(q)
    difference = attention(q, k, v, attn_mask=mask) - attention(moved, k, v, attn_mask=mask)
    print("expected a difference of 0 for a query at an address that 16 does not divide")
    print("got", float(difference.abs().max()))
    print("DEVIATES" if torch.equal(q, moved) and difference.abs().max() > 1 else "fixed")
else:
    print("not applicable here")
