"""ResNet-20 in stages with torch.distributed.pipelining over gloo: the peer of `paceline train --model resnet20 --stages 2`.

One process passes the same micro-batches one after the other (`--stages 1`); with `--stages 2` each of two processes has one
stage, and Schedule1F1B says who does what when. One thread per process. The cut stands before the block that `--cut` names,
e.g. `layer2.1`. Channels come first: gloo sends no other layout. Prints one JSON line, last.
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

from torch_resnet20 import ResNet


class Head(nn.Module):
    """What is left of a network that is a list of blocks: pooling and the last layer."""

    def __init__(self, fc):
        super().__init__()
        self.fc = fc

    def forward(self, x):
        return self.fc(x.mean((2, 3)))


def blocks(net):
    """The network as named blocks that follow each other."""
    yield "conv1", nn.Sequential(net.conv1, net.bn1, nn.ReLU(inplace=True))
    for layer in ("layer1", "layer2", "layer3"):
        for i, block in enumerate(getattr(net, layer)):
            yield f"{layer}.{i}", block
    yield "fc", Head(net.fc)


def parts(cut):
    torch.manual_seed(1)
    named = list(blocks(ResNet()))
    at = [name for name, _ in named].index(cut)
    return [nn.Sequential(*(block for _, block in some)) for some in (named[:at], named[at:])]


def data():
    return torch.randn(2048, 3, 32, 32), torch.randint(0, 10, (2048,))


def alone(a):
    """The rate of one process, and the seconds that each stage takes of it."""
    nets = parts(a.cut)
    x, y = data()
    opt = torch.optim.SGD([p for net in nets for p in net.parameters()], lr=0.01, momentum=0.9)
    seconds = [0.0, 0.0]

    def step():
        i = torch.randint(0, 2048, (a.batch,))
        opt.zero_grad(set_to_none=True)
        for own in i.chunk(a.micro_batches):
            begun = time.perf_counter()
            first = nets[0](x[own])
            handed = first.detach().requires_grad_()
            between = time.perf_counter()
            (F.cross_entropy(nets[1](handed), y[own]) / a.micro_batches).backward()
            back = time.perf_counter()
            first.backward(handed.grad)
            seconds[0] += between - begun + time.perf_counter() - back
            seconds[1] += back - between
        opt.step()

    return timed(a, step), seconds


def timed(a, step):
    for _ in range(a.warmup):
        step()
    begun = time.perf_counter()
    for _ in range(a.steps):
        step()
    return a.steps * a.batch / (time.perf_counter() - begun)


def stage(rank, a, rates):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    dist.init_process_group("gloo", rank=rank, world_size=2)
    x, y = data()
    part = parts(a.cut)[rank]
    opt = torch.optim.SGD(part.parameters(), lr=0.01, momentum=0.9)
    own = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(own, n_microbatches=a.micro_batches, loss_fn=F.cross_entropy)

    def step():
        i = torch.randint(0, 2048, (a.batch,))
        opt.zero_grad(set_to_none=True)
        if rank == 0:
            schedule.step(x[i])
        else:
            schedule.step(target=y[i])
        opt.step()

    rates[rank] = timed(a, step)
    dist.barrier()
    dist.destroy_process_group()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--stages", type=int, choices=(1, 2), default=2)
    ap.add_argument("--micro-batches", type=int, default=8)
    ap.add_argument("--cut", default="layer2.1")
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--steps", type=int, default=10)
    ap.add_argument("--warmup", type=int, default=2)
    a = ap.parse_args()
    torch.set_num_threads(1)
    seconds = None
    if a.stages == 1:
        rate, seconds = alone(a)
    else:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ["MASTER_PORT"] = str(free_port())
        rates = mp.get_context("spawn").Manager().list([0.0, 0.0])
        mp.spawn(stage, args=(a, rates), nprocs=2)
        rate = min(rates)
    print(json.dumps(dict(peer="torch-pipelining", version=torch.__version__, model="resnet20", stages=a.stages,
                          micro_batches=a.micro_batches, cut=a.cut, batch=a.batch,
                          steps=a.steps, samples_per_s=rate, stage_s=seconds)))


def free_port():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    main()
