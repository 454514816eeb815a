"""Trains with PyTorch's DistributedDataParallel over gloo. torchrun starts one of these per worker:

    torchrun --standalone --nproc-per-node 2 torch_ddp.py --data FOLDER --model lenet
"""

import os

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from torch_network import evaluate, network, tensors
from workload import Clock, arguments, batches, load, report


def main():
    args = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, args.workers = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)

    x, y = tensors(*load(args.data, "train"))
    sampler = DistributedSampler(range(len(y)), shuffle=True, seed=args.seed, drop_last=True)
    model = DistributedDataParallel(network(args.model, x.shape[1:], int(y.max()) + 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)

    def indices(epoch):
        sampler.set_epoch(epoch)
        return torch.tensor(list(sampler))

    order = batches(indices, args.batch)

    def step():
        i = next(order)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        return loss

    step()
    dist.barrier()
    clock = Clock()
    for _ in range(args.steps - 1):
        loss = step()
    dist.barrier()
    clock.stop()

    # Every worker evaluates its part.
    x, y = tensors(*load(args.data, "test"))
    sums = evaluate(model.module, x[rank :: args.workers], y[rank :: args.workers])
    train_loss = loss.detach() / args.workers
    dist.all_reduce(sums)
    dist.all_reduce(train_loss)
    if rank == 0:
        report(args, clock, train_loss, sums[0] / sums[2], sums[1] / sums[2])
    dist.destroy_process_group()
    # The model still holds threads of gloo, and taking down the interpreter now and then aborts on them.
    os._exit(0)


if __name__ == "__main__":
    main()
