import torch
import torch._functorch.config as config
attention = torch.nn.functional.scaled_dot_product_attention
call = torch.compile(lambda q, k, v: attention(q, k, v, dropout_p=0.5), backend="aot_eager_decomp_partition")
q, g = torch.zeros(8, 2, 16, 16), torch.randn(8, 2, 16, 16)
v = torch.eye(16).expand(8, 2, 16, 16).clone().requires_grad_()  # the output shows the weights
errors = []
for budget in (1.0, 0.0):
    torch._dynamo.reset()
    with config.patch(activation_memory_budget=budget):
        out = call(q, q, v)
        (gradient,) = torch.autograd.grad(out, v, g)
    errors.append(float((gradient - out.detach().mT @ g).abs().max()))
print("expected errors of 1e-7 with the memory budgets 1 and 0")
print("got", errors)
print("DEVIATES" if errors[0] <= 0.1 < errors[1] else "fixed")
