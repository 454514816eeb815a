"""ResNet-20 cut into stages, trained by PyTorch's Schedule1F1B over gloo: the peer of `paceline train --stages`.

Every stage is a process with one thread. `--stages 1` is one process that adds up the gradients of the same micro-batches.
Cuts are numbers of blocks (0: the first convolution, 1 to 9: residual blocks, 10: mean and classifier): `--cuts 5` gives
stages 0-4 and 5-10. Prints one JSON line, last: samples per second, and seconds per step that each stage computes alone.
"""
import argparse
import json
import os
import socket
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from torch_resnet20 import Block


class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)

    def forward(self, x):
        return F.relu(self.bn1(self.conv1(x)), inplace=True)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        return self.fc(x.mean((2, 3)))


def blocks():
    widths = [16] * 3 + [32] * 3 + [64] * 3
    stack, before = [Stem()], 16
    for width in widths:
        stack.append(Block(before, width, 2 if width != before else 1))
        before = width
    return stack + [Head()]


class ToLayout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, memory_format, back):
        ctx.back = back
        return x.contiguous(memory_format=memory_format)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.contiguous(memory_format=ctx.back), None, None


class Layout(nn.Module):
    def __init__(self, memory_format, back):
        super().__init__()
        self.formats = memory_format, back

    def forward(self, x):
        return ToLayout.apply(x, *self.formats)


def part(a, stage):
    """A stage's blocks. Only plain tensors can be sent: with channels_last a stage changes the layout when it begins and ends."""
    torch.manual_seed(1)
    bounds = [0] + a.cuts + [11]
    stack = blocks()[bounds[stage]:bounds[stage + 1]]
    if a.channels_last:
        plain, last = torch.contiguous_format, torch.channels_last
        stack.insert(0, Layout(last, plain))
        if stage < a.stages - 1:
            stack.append(Layout(plain, last))
    net = nn.Sequential(*stack)
    return net.to(memory_format=torch.channels_last) if a.channels_last else net


def images(batch):
    torch.manual_seed(2)
    return torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))


def alone(a):
    """Seconds per step that each stage computes, in this one process, and the samples per second of all together."""
    nets = [part(a, s) for s in range(a.stages)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9) for net in nets]
    x, y = images(a.batch)
    seconds = [0.0] * a.stages
    for step in range(a.warmup + a.steps):
        if step == a.warmup:
            seconds, begin = [0.0] * a.stages, time.perf_counter()
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        for value, target in zip(x.chunk(a.micro_batches), y.chunk(a.micro_batches)):
            handed = []
            for s, net in enumerate(nets):
                t = time.perf_counter()
                value = value.detach().requires_grad_(s > 0)
                out = net(value)
                handed.append((value, out))
                value = out
                seconds[s] += time.perf_counter() - t
            gradient = None
            for s in reversed(range(a.stages)):
                t = time.perf_counter()
                value, out = handed[s]
                if s == a.stages - 1:
                    (F.cross_entropy(out, target) / a.micro_batches).backward()
                else:
                    out.backward(gradient)
                gradient = value.grad
                seconds[s] += time.perf_counter() - t
        for optimizer in optimizers:
            optimizer.step()
    took = time.perf_counter() - begin
    return a.batch * a.steps / took, [s / a.steps for s in seconds]


def staged(rank, a, port):
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=a.stages)
    net = part(a, rank)
    stage = PipelineStage(net, rank, a.stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=a.micro_batches, loss_fn=F.cross_entropy)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = images(a.batch)
    for step in range(a.warmup + a.steps):
        if step == a.warmup:
            dist.barrier()
            begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        if rank == 0:
            schedule.step(x, **({"target": y} if a.stages == 1 else {}))
        elif rank == a.stages - 1:
            schedule.step(target=y, losses=[])
        else:
            schedule.step()
        optimizer.step()
    dist.barrier()
    took = time.perf_counter() - begin
    if rank == 0:
        with open(a.out, "w") as f:
            json.dump(a.batch * a.steps / took, f)
    dist.destroy_process_group()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--stages", type=int, default=2)
    ap.add_argument("--cuts", type=lambda text: [int(n) for n in text.split(",")], default=[5])
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--micro-batches", type=int, default=8)
    ap.add_argument("--steps", type=int, default=10)
    ap.add_argument("--warmup", type=int, default=2)
    ap.add_argument("--channels-last", action="store_true")
    ap.add_argument("--alone", action="store_true", help="one process instead of one per stage")
    ap.add_argument("--out", default="")
    a = ap.parse_args()
    torch.set_num_threads(1)
    if a.alone:
        rate, seconds = alone(a)
        print(json.dumps({"samples_per_s": rate, "stage_s": seconds}))
        return
    import tempfile
    import torch.multiprocessing as mp

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        a.out = os.path.join(folder, "rate.json")
        mp.spawn(staged, (a, port), nprocs=a.stages)
        with open(a.out) as f:
            print(json.dumps({"samples_per_s": json.load(f), "stages": a.stages}))


if __name__ == "__main__":
    main()
