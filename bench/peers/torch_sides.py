"""One training loop, three sides: bare, attached to Paceline, and under PyTorch's DDP over gloo by hand.

    python torch_sides.py --side bare --model lenet
    python torch_sides.py --side ddp --workers 2 --model mlp --bucket-mb 25     starts its workers itself
    python torch_sides.py --side apart --workers 2                              the same workers, none of which knows another
    paceline train --script torch_sides.py --workers 2 -- --side paceline --model mlp

Everything but the side is the same: the network, made-up samples, who sees which of them, the optimizer. Prints one JSON
line last: samples per second of the loop after the warm-up, and the hash of the final parameters; `--keep FILE` keeps them.
"""

import argparse
import hashlib
import json
import os
import socket
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--side", choices=["bare", "apart", "paceline", "ddp"], required=True)
parser.add_argument("--model", choices=["lenet", "mlp"], default="lenet")
parser.add_argument("--optimizer", choices=["sgd", "momentum", "adam"], default="momentum")
parser.add_argument("--workers", type=int, default=1, help="of DDP, or apart; Paceline tells its own")
parser.add_argument("--batch", type=int, default=64, help="samples of each worker's step")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--warmup", type=int, default=10)
parser.add_argument("--threads", type=int, help="of each worker; else PyTorch's own choice, or Paceline's")
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--bucket-mb", type=float, default=25.0)
parser.add_argument("--bucket-view", action="store_true")
parser.add_argument("--keep-memory", action="store_true", help="of DDP, or apart: malloc as Paceline sets it for scripts")
parser.add_argument("--keep", help="writes the final parameters to FILE.RANK, as f32")
words = parser.parse_args()


def network(nn):
    if words.model == "mlp":
        return nn.Sequential(
            nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
        )
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def train():
    import torch
    import torch.nn.functional as F

    if words.threads:
        torch.set_num_threads(words.threads)
    torch.manual_seed(1)
    inputs = torch.rand(4096, 784) * 2 - 1
    labels = torch.randint(10, (4096,))
    model = network(torch.nn)
    if words.model == "lenet":
        inputs = inputs.view(-1, 1, 28, 28)
    if words.channels_last:
        model = model.to(memory_format=torch.channels_last)
    named = dict(sgd={}, momentum={"momentum": 0.9})
    rank, workers, steps = 0, words.workers, range(words.warmup + words.steps)
    if words.side == "ddp":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        rank = dist.get_rank()
        trained = torch.nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=words.bucket_mb, gradient_as_bucket_view=words.bucket_view
        )
    else:
        trained = model
    if words.optimizer == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, **named[words.optimizer])
    if words.side == "paceline":
        import paceline.torch as pace

        run = pace.attach(model, optimizer)
        rank, workers, steps = run.rank, run.workers, run.steps(len(steps))

    begun = cpu = 0.0
    for step in steps:
        if step == words.warmup:
            begun, cpu = time.perf_counter(), time.process_time()
        first = (step * workers + rank) * words.batch
        which = torch.arange(first, first + words.batch) % len(labels)
        optimizer.zero_grad()
        loss = F.cross_entropy(trained(inputs[which]), labels[which])
        loss.backward()
        optimizer.step()
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    final = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().tobytes()
    if words.keep:
        with open(f"{words.keep}.{rank}", "wb") as file:
            file.write(final)
    if words.side == "ddp":
        dist.barrier()
        dist.destroy_process_group()
    if words.side == "apart":
        rank = int(os.environ["RANK"])
    if rank == 0:
        result = dict(vars(words), workers=workers, torch=torch.__version__, threads=torch.get_num_threads())
        del result["keep"]
        result.update(
            loop_s=seconds, loop_cpu_s=cpu, samples_per_s=words.steps * words.batch * workers / seconds,
            loss=loss.item(), params_sha256=hashlib.sha256(final).hexdigest(),
        )  # fmt: skip
        print(json.dumps(result), flush=True)
    if words.side == "paceline":
        run.report(loop_s=seconds, loop_cpu_s=cpu, loop_samples_per_s=words.steps * words.batch * workers / seconds)


def start_workers():
    """DDP's workers, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = dict(os.environ, WORLD_SIZE=str(words.workers), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    environment["GLOO_SOCKET_IFNAME"] = "lo"
    if words.threads:
        environment["OMP_NUM_THREADS"] = str(words.threads)
    if words.keep_memory:
        environment.update(MALLOC_TRIM_THRESHOLD_=str(16 << 30), MALLOC_MMAP_THRESHOLD_=str(32 << 20))
    workers = [
        subprocess.Popen([sys.executable, *sys.argv], env=dict(environment, RANK=str(rank)))
        for rank in range(words.workers)
    ]
    sys.exit(max(abs(worker.wait()) for worker in workers))


if words.side in ("ddp", "apart") and "RANK" not in os.environ:
    start_workers()
train()
