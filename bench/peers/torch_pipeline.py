"""ResNet-20 in stages with torch.distributed.pipelining over gloo: the peer of `paceline train --model resnet20 --stages S`.

First one process passes the micro-batches one after the other, then a process for each stage does what Schedule1F1B says: one
thread and one core per process. `--cuts` has the first layer of each stage but the first, by the names that `paceline model
show resnet20` lists, e.g. `layer1.1.bn2,layer2.1.conv1`; where a cut lies inside a residual block, the block's input is handed
on, too. Channels come first: gloo sends no other layout. Prints one JSON line, last.
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
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from torch_resnet20 import ResNet

INPUT = "input"
SAMPLES = 2048


class Normed(nn.Module):
    """Batch norm, and ReLU where one follows."""

    def __init__(self, bn):
        super().__init__()
        self.bn = bn

    def forward(self, x):
        return F.relu(self.bn(x), inplace=True)


class Sum(nn.Module):
    def forward(self, x, skip):
        return F.relu(x + skip, inplace=True)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def layers(net):
    """The network as (name, what it reads, module), in the order of `paceline model show`."""
    yield "conv1", (INPUT,), net.conv1
    yield "bn1", ("conv1",), Normed(net.bn1)
    x = "bn1"
    for layer in ("layer1", "layer2", "layer3"):
        for i, block in enumerate(getattr(net, layer)):
            at = f"{layer}.{i}"
            skip = x
            if block.downsample is not None:
                yield f"{at}.downsample.0", (x,), block.downsample[0]
                yield f"{at}.downsample.1", (f"{at}.downsample.0",), block.downsample[1]
                skip = f"{at}.downsample.1"
            yield f"{at}.conv1", (x,), block.conv1
            yield f"{at}.bn1", (f"{at}.conv1",), Normed(block.bn1)
            yield f"{at}.conv2", (f"{at}.bn1",), block.conv2
            yield f"{at}.bn2", (f"{at}.conv2",), block.bn2
            x = f"{at}.add"
            yield x, (f"{at}.bn2", skip), Sum()
    yield "pool", (x,), Mean()
    yield "fc", ("pool",), net.fc


class Part(nn.Module):
    """Consecutive layers. It takes the values that cross its first cut, and returns those that cross its last."""

    def __init__(self, named, begin, end):
        super().__init__()
        self.modules_ = nn.ModuleList(module for _, _, module in named[begin:end])
        self.named = [(name, reads) for name, reads, _ in named[begin:end]]
        self.taken, self.given = crossing(named, begin), crossing(named, end)

    def forward(self, *values):
        known = dict(zip(self.taken, values))
        for (name, reads), module in zip(self.named, self.modules_):
            known[name] = module(*(known[value] for value in reads))
        # What only passes through is a value of this stage, too, so that its gradient comes back through here.
        given = tuple(known[name].view_as(known[name]) if name in self.taken else known[name] for name in self.given)
        return given[0] if len(given) == 1 else given


def crossing(named, cut):
    """The values that are made before a cut and read behind it; of the whole network, its answer."""
    if cut == len(named):
        return [named[-1][0]]
    made = [INPUT] + [name for name, _, _ in named[:cut]]
    read = {value for _, reads, _ in named[cut:] for value in reads}
    return [name for name in made if name in read]


def part(a, stage):
    """The layers of a stage."""
    torch.manual_seed(1)
    named = list(layers(ResNet()))
    names = [name for name, _, _ in named]
    at = [0] + [names.index(cut) for cut in a.cuts] + [len(named)]
    return Part(named, at[stage], at[stage + 1])


def data():
    return torch.randn(SAMPLES, 3, 32, 32), torch.randint(0, 10, (SAMPLES,))


def optimiser(net):
    return torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


def timed(a, steps, step, warm=lambda: None):
    """Samples per second of these steps; `warm` is called before the first of them."""
    for _ in range(a.warmup):
        step()
    warm()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    return steps * a.batch / (time.perf_counter() - begun)


def settle(rank):
    """One thread, on a core that no other rank has."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def alone(_, a, said):
    """One process: the same micro-batches, the whole network."""
    settle(0)
    torch.manual_seed(1)
    net = ResNet()
    x, y = data()
    opt = optimiser(net)

    def step():
        i = torch.randint(0, SAMPLES, (a.batch,))
        opt.zero_grad(set_to_none=True)
        for own in i.chunk(a.micro_batches):
            (F.cross_entropy(net(x[own]), y[own]) / a.micro_batches).backward()
        opt.step()

    said["alone"] = timed(a, a.alone_steps, step)


class TimedStage(PipelineStage):
    """A stage that counts the seconds of its passes, without what it waits for."""

    seconds = 0.0

    def forward_one_chunk(self, *args, **kwargs):
        begun = time.perf_counter()
        try:
            return super().forward_one_chunk(*args, **kwargs)
        finally:
            self.seconds += time.perf_counter() - begun

    def backward_one_chunk(self, *args, **kwargs):
        begun = time.perf_counter()
        try:
            return super().backward_one_chunk(*args, **kwargs)
        finally:
            self.seconds += time.perf_counter() - begun


def stage(rank, a, said):
    settle(rank)
    count = len(a.cuts) + 1
    dist.init_process_group("gloo", rank=rank, world_size=count)
    x, y = data()
    net = part(a, rank)
    opt = optimiser(net)
    own = TimedStage(net, rank, count, torch.device("cpu"))
    schedule = Schedule1F1B(own, n_microbatches=a.micro_batches, loss_fn=F.cross_entropy)

    def step():
        i = torch.randint(0, SAMPLES, (a.batch,))
        opt.zero_grad(set_to_none=True)
        if rank == 0:
            schedule.step(x[i])
        elif rank == count - 1:
            schedule.step(target=y[i])
        else:
            schedule.step()
        opt.step()

    def forget():
        own.seconds = 0.0

    rate = timed(a, a.steps, step, forget)
    said[rank] = (rate, own.seconds)
    dist.barrier()
    dist.destroy_process_group()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--cuts", default="layer2.1.conv1", type=lambda words: words.split(","))
    ap.add_argument("--micro-batches", type=int, default=8)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--steps", type=int, default=12, help="steps in stages")
    ap.add_argument("--alone-steps", type=int, default=12, help="steps of one process")
    ap.add_argument("--warmup", type=int, default=2)
    a = ap.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["MASTER_PORT"] = str(free_port())
    count = len(a.cuts) + 1
    with mp.get_context("fork").Manager() as manager:
        said = manager.dict()
        # Processes are forked: torch is read once, and no thread runs yet.
        mp.start_processes(alone, args=(a, said), nprocs=1, start_method="fork")
        mp.start_processes(stage, args=(a, said), nprocs=count, start_method="fork")
        ranks = [said[rank] for rank in range(count)]
        one = said["alone"]
    print(json.dumps(dict(peer="torch-pipelining", version=torch.__version__, model="resnet20", stages=count,
                          micro_batches=a.micro_batches, cuts=a.cuts, batch=a.batch, steps=a.steps,
                          alone_steps=a.alone_steps, alone_samples_per_s=one,
                          samples_per_s=min(rate for rate, _ in ranks), stage_s=[seconds for _, seconds in ranks])))


def free_port():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    main()
