"""Training steps on a GPU, on three sides: plain, under PyTorch's DDP, attached to Paceline.

    python torch_gpu.py --side plain --case resnet50:64
    python torch_gpu.py --side ddp --workers 2 --case resnet50:64:25 --case lenet:512:25    starts its workers itself
    python torch_gpu.py --side ddp --backend nccl --case resnet50:128:25
    paceline train --script torch_gpu.py --workers 2 --gpus 0 -- --side paceline --case resnet50:64

A case is MODEL:BATCH, under DDP with :BUCKET in MB, or with :plain for the same loop without DDP in the same process. Everything but the side is the same: networks, made-up samples that lie on the device, who
sees which of them, the optimizer. ResNet-50 and the GPT compute in bfloat16 (autocast), parameters and gradients are float32. Prints one JSON line
last: for each case the median and the mean time of a step; `--keep FILE` keeps the final parameters as FILE.MODEL.RANK.
"""

import argparse
import contextlib
import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--side", choices=["plain", "paceline", "ddp"], required=True)
parser.add_argument("--case", action="append", required=True, help="MODEL:BATCH[:BUCKET or :plain]")
parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo", help="of DDP")
parser.add_argument("--workers", type=int, default=1, help="of DDP; Paceline tells its own")
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--warmup", type=int, default=8)
parser.add_argument("--deterministic", action="store_true")
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--device", help="instead of the GPU, to try the script out")
parser.add_argument("--keep", help="writes the final parameters to FILE.MODEL.RANK, as f32")
words = parser.parse_args()

# cuBLAS wants this before it is loaded, to add up in one order.
if words.deterministic:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"


def lenet(torch):
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def gpt(torch, width=384, heads=6, layers=6, context=256, words_known=512):
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            batch, length, _ = x.shape
            parts = self.attention(self.norm1(x)).view(batch, length, 3, heads, width // heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.mlp(self.norm2(x))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(words_known, width), nn.Embedding(context, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, words_known, bias=False)

        def forward(self, x):
            x = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
            return self.head(self.norm(self.blocks(x))).transpose(1, 2)

    return GPT()


def network(torch, model):
    """A network, and samples of what it is trained with: inputs and labels for a number of them."""
    if model == "lenet":
        return lenet(torch), lambda n: (torch.rand(n, 1, 28, 28) * 2 - 1, torch.randint(10, (n,)))
    if model == "gpt":

        def text(n):
            # Words that follow from the one before, mostly.
            start, skips = torch.randint(512, (n, 1)), torch.randint(3, (n, 257))
            rows = (start + (3 * skips).cumsum(1)) % 512
            return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

        return gpt(torch), text
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from torch_resnet50 import ResNet50

    return ResNet50(classes=1000), lambda n: (torch.randn(n, 3, 224, 224), torch.randint(1000, (n,)))


def train(torch, case, rank, workers, run_of):
    model_name, batch, bucket = (case.split(":") + ["25"])[:3]
    batch = int(batch)
    torch.manual_seed(1)
    device = torch.device(words.device or "cuda")
    model, samples = network(torch, model_name)
    inputs, labels = (part.to(device) for part in samples(8 * batch))
    model = model.to(device)
    if words.channels_last and inputs.dim() == 4:
        model = model.to(memory_format=torch.channels_last)
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    trained, run, steps = model, None, range(words.warmup + words.steps)
    if words.side == "ddp" and bucket != "plain":
        trained = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=float(bucket), gradient_as_bucket_view=True)
    if words.side == "paceline":
        run = run_of(model, optimizer)
        rank, workers, steps = run.rank, run.workers, run.steps(len(steps))
    cuda = device.type == "cuda"
    half = model_name != "lenet"
    marks, begun = [], 0.0
    for step in steps:
        if step >= words.warmup:
            marks.append(torch.cuda.Event(enable_timing=True) if cuda else time.perf_counter())
            if cuda:
                marks[-1].record()
        if step == words.warmup:
            if cuda:
                torch.cuda.synchronize()
            begun = time.perf_counter()
        first = (step * workers + rank) * batch % len(labels)
        x, y = inputs[first : first + batch], labels[first : first + batch]
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16) if half else contextlib.nullcontext():
            loss = torch.nn.functional.cross_entropy(trained(x), y)
        loss.backward()
        optimizer.step()
    if cuda:
        torch.cuda.synchronize()
    mean = (time.perf_counter() - begun) / max(len(marks), 1)
    between = [a.elapsed_time(b) / 1e3 if cuda else b - a for a, b in zip(marks, marks[1:])]
    final = torch.cat([p.detach().flatten().float() for p in model.parameters()]).cpu().numpy().tobytes()
    if words.keep:
        Path(f"{words.keep}.{model_name}.{rank}").write_bytes(final)
    step_s = statistics.median(between) if between else mean
    figures = {"step_s": step_s, "mean_step_s": mean, "samples_per_s": batch * workers / step_s, "loss": loss.item()}
    return run, rank, {"case": case, **figures, "params_sha256": hashlib.sha256(final).hexdigest()}


def main():
    import torch

    if words.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    rank = int(os.environ.get("RANK", 0))
    if words.side == "paceline":
        import paceline.torch as pace

        assert len(words.case) == 1, "a run has one model"
        run, rank, result = train(torch, words.case[0], 0, 1, pace.attach)
        # The hash as a number that the record can carry: its first six bytes.
        run.report(
            step_s=result["step_s"], mean_step_s=result["mean_step_s"], samples_per_s=result["samples_per_s"],
            loss=result["loss"], params_begin=int(result["params_sha256"][:12], 16),
        )  # fmt: skip
        results = [result]
    else:
        if words.side == "ddp":
            torch.distributed.init_process_group(words.backend)
        results = [train(torch, case, rank, words.workers, None)[2] for case in words.case]
    version = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if rank == 0:
        print(json.dumps({"side": words.side, "backend": words.backend, "workers": words.workers, **version, "cases": results}))
        sys.stdout.flush()
    if words.side == "ddp":
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def start_workers():
    """DDP's workers, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = dict(os.environ, WORLD_SIZE=str(words.workers), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    environment.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "4"))
    started = [
        subprocess.Popen([sys.executable, *sys.argv], env=dict(environment, RANK=str(rank)))
        for rank in range(words.workers)
    ]
    sys.exit(max(abs(worker.wait()) for worker in started))


if words.side == "ddp" and "RANK" not in os.environ:
    start_workers()
main()
