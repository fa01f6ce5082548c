import torch


def maml(model, tasks, meta_opt, inner_lr, loss_fn, meta_batch):
    for _ in range(100):
        meta_opt.zero_grad()
        for task in tasks.sample(meta_batch):
            fast = {n: p for n, p in model.named_parameters()}
            support = loss_fn(torch.func.functional_call(model, fast, task.xs), task.ys)
            grads = torch.autograd.grad(support, list(fast.values()), create_graph=True)
            fast = {n: p - inner_lr * g for (n, p), g in zip(fast.items(), grads)}
            query = loss_fn(torch.func.functional_call(model, fast, task.xq), task.yq)
            (query / meta_batch).backward()
        meta_opt.step()
