"""Trains with Horovod and PyTorch over gloo. horovodrun starts one of these per worker:

    horovodrun -np 2 --gloo python3 horovod_torch.py --data FOLDER --model lenet
"""

import horovod.torch as hvd
import torch
from torch.nn import functional
from torch.utils.data.distributed import DistributedSampler

from torch_network import evaluate, network, tensors
from workload import Clock, arguments, batches, load, report


def main():
    args = arguments()
    torch.set_num_threads(1)
    hvd.init()
    args.workers = hvd.size()
    torch.manual_seed(args.seed)

    x, y = tensors(*load(args.data, "train"))
    sampler = DistributedSampler(
        range(len(y)), num_replicas=hvd.size(), rank=hvd.rank(), shuffle=True, seed=args.seed, drop_last=True
    )
    model = network(args.model, x.shape[1:], int(y.max()) + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

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
    hvd.barrier()
    clock = Clock()
    for _ in range(args.steps - 1):
        loss = step()
    hvd.barrier()
    clock.stop()

    # Every worker evaluates its part.
    x, y = tensors(*load(args.data, "test"))
    sums = hvd.allreduce(evaluate(model, x[hvd.rank() :: args.workers], y[hvd.rank() :: args.workers]), op=hvd.Sum)
    train_loss = hvd.allreduce(loss.detach(), op=hvd.Average)
    if hvd.rank() == 0:
        report(args, clock, train_loss, sums[0] / sums[2], sums[1] / sums[2])


if __name__ == "__main__":
    main()
