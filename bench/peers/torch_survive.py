"""Seconds that a SIGKILL of one worker costs: torchrun's elastic restart from a checkpoint, and torchft, both over gloo.

The peer of `paceline train --elastic`: lenet on images of 8×8, one thread per process. A worker is killed at some moment;
what counts is the time until the run has made 20 steps that it had not made before, less 20 usual steps.

`--system torchrun`: torch.distributed.run starts all workers again, and they go on from the last checkpoint, which is
written every `--checkpoint-every` steps. `--system torchft`: survivors go on with fewer replicas; a new process takes the
lost one's place before the next kill, which is not counted. torchft's lighthouse believes in a replica that is gone for
`--heartbeat-timeout-ms` (its own default is 5000) and waits `--join-timeout-ms` for more. Prints one JSON line, last.

torch 2.13 needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for restarts over gloo on one machine: with the shared store, workers
that start again read the addresses of the ones before.
"""
import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

# Steps that count as going on.
WINDOW = 20

ap = argparse.ArgumentParser()
ap.add_argument("--system", choices=["torchrun", "torchft"], default="torchrun")
ap.add_argument("--workers", type=int, default=4)
ap.add_argument("--kills", type=int, default=5)
ap.add_argument("--batch", type=int, default=32, help="samples of all workers")
ap.add_argument("--checkpoint-every", type=int, default=10)
ap.add_argument("--heartbeat-timeout-ms", type=int, default=5000)
ap.add_argument("--join-timeout-ms", type=int, default=100)
ap.add_argument("--seed", type=int, default=1)
ap.add_argument("--deadline", type=float, default=60, help="seconds after which a kill counts as not survived")
ap.add_argument("--folder", help=argparse.SUPPRESS)
ap.add_argument("--lighthouse", help=argparse.SUPPRESS)
ap.add_argument("--replica", type=int, help=argparse.SUPPRESS)


def build(torch):
    nn = torch.nn
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))


def data(torch):
    torch.manual_seed(2)
    return torch.randn(1437, 1, 8, 8), torch.randint(0, 10, (1437,))


class Diary:
    """Steps that were completed, by whom and when: one line each."""

    def __init__(self, folder, rank):
        self.file = os.open(os.path.join(folder, "steps"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.rank = rank

    def step(self, step, members):
        os.write(self.file, f"{time.time():.6f} {os.getpid()} {self.rank} {step} {members}\n".encode())


def restarted_worker(a):
    """A worker of torchrun."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    net = torch.nn.parallel.DistributedDataParallel(build(torch))
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = data(torch)
    saved, step = os.path.join(a.folder, "checkpoint"), 0
    if os.path.exists(saved):
        found = torch.load(saved)
        net.module.load_state_dict(found["net"])
        opt.load_state_dict(found["opt"])
        step = found["step"]
    diary = Diary(a.folder, rank)
    while not os.path.exists(os.path.join(a.folder, "stop")):
        i = torch.randint(0, len(y), (a.batch // world,))
        opt.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(net(x[i]), y[i]).backward()
        opt.step()
        step += 1
        diary.step(step, world)
        if rank == 0 and step % a.checkpoint_every == 0:
            torch.save({"net": net.module.state_dict(), "opt": opt.state_dict(), "step": step}, saved + ".new")
            os.replace(saved + ".new", saved)


def replica(a):
    """A replica group of one process, under torchft."""
    import torch
    import torch.distributed as dist
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    torch.set_num_threads(1)
    net = build(torch)
    inner = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def load(state):
        net.load_state_dict(state["net"])
        inner.load_state_dict(state["opt"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)), min_replica_size=2, load_state_dict=load,
        state_dict=lambda: {"net": net.state_dict(), "opt": inner.state_dict()}, replica_id=f"replica_{a.replica}",
        store_addr="localhost", store_port=store.port, rank=0, world_size=1, lighthouse_addr=a.lighthouse,
        hostname="localhost", timeout=timedelta(seconds=30), quorum_timeout=timedelta(seconds=60))
    wrapped, opt = DistributedDataParallel(manager, net), Optimizer(manager, inner)
    x, y = data(torch)
    diary, done = Diary(a.folder, a.replica), 0
    while not os.path.exists(os.path.join(a.folder, "stop")):
        i = torch.randint(0, len(y), (a.batch // a.workers,))
        opt.zero_grad()
        torch.nn.functional.cross_entropy(wrapped(x[i]), y[i]).backward()
        opt.step()
        if manager.current_step() > done:
            done = manager.current_step()
            diary.step(done, manager.num_participants())
    os._exit(0)


class Watch:
    """The diary as the driver reads it."""

    def __init__(self, folder):
        self.path, self.lines, self.at = os.path.join(folder, "steps"), [], 0

    def read(self):
        if os.path.exists(self.path):
            with open(self.path) as file:
                file.seek(self.at)
                for line in iter(file.readline, ""):
                    if not line.endswith("\n"):
                        break
                    self.at += len(line)
                    at, pid, rank, step, members = line.split()
                    self.lines.append((float(at), int(pid), int(rank), int(step), int(members)))
        return self.lines

    def until(self, holds, deadline):
        end = time.time() + deadline
        while time.time() < end:
            found = holds(self.read())
            if found is not None:
                return found
            time.sleep(0.002)
        return None


def everybody(a, after):
    """The first moment at which all workers have made 20 steps together since `after`: their processes by rank."""
    def holds(lines):
        recent = [line for line in lines if line[0] > after and line[4] == a.workers]
        steps = {rank: [line for line in recent if line[2] == rank] for rank in range(a.workers)}
        if any(len(of_rank) < 20 for of_rank in steps.values()):
            return None
        return {rank: of_rank[-1][1] for rank, of_rank in steps.items()}
    return holds


def main():
    a = ap.parse_args()
    if a.folder and a.replica is not None:
        return replica(a)
    if a.folder:
        return restarted_worker(a)
    env = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", TORCHFT_USE_OTEL="false",
               TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", RUST_LOG="off")
    os.environ["RUST_LOG"] = "off"
    with tempfile.TemporaryDirectory() as folder:
        own = [__file__, "--folder", folder, "--workers", str(a.workers), "--batch", str(a.batch),
               "--checkpoint-every", str(a.checkpoint_every)]
        quiet = dict(env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        processes, lighthouse = {}, None
        if a.system == "torchrun":
            run = ["-m", "torch.distributed.run", "--standalone", "--nnodes", "1", "--nproc-per-node", str(a.workers),
                   "--max-restarts", str(a.kills + 1)]
            processes[0] = subprocess.Popen([sys.executable, *run, *own], **quiet)
        else:
            from torchft.coordination import LighthouseServer
            lighthouse = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=a.join_timeout_ms,
                                          quorum_tick_ms=10, heartbeat_timeout_ms=a.heartbeat_timeout_ms)

            def start(rank):
                words = ["--system", "torchft", "--replica", str(rank), "--lighthouse", lighthouse.address()]
                processes[rank] = subprocess.Popen([sys.executable, *own, *words], **quiet)
            for rank in range(a.workers):
                start(rank)
        watch, draw, lost, usual = Watch(folder), random.Random(a.seed), [], []
        begun, failed = time.time(), None
        for kill in range(a.kills):
            ranks = watch.until(everybody(a, begun), 3 * a.deadline)
            if ranks is None:
                failed = f"kill {kill}: not everybody takes part"
                break
            steady = [line for line in watch.read() if line[0] > begun and line[2] == 0 and line[4] == a.workers]
            times = [line[0] for line in steady][-20:]
            step = statistics.median(later - earlier for earlier, later in zip(times, times[1:]))
            time.sleep(draw.random() * 4 * step)
            victim = draw.randrange(a.workers)
            killed = time.time()
            os.kill(ranks[victim], signal.SIGKILL)
            most = max(line[3] for line in watch.read() if line[0] <= killed)
            at = watch.until(
                lambda lines: next((l[0] for l in lines if l[0] > killed and l[3] >= most + WINDOW), None), a.deadline)
            if at is None:
                failed = f"kill {kill}: no {WINDOW} new steps within {a.deadline} s"
                break
            lost.append(at - killed - WINDOW * step)
            usual.append(step)
            if a.system == "torchft":
                processes[victim].wait()
                start(victim)
            begun = time.time()
        open(os.path.join(folder, "stop"), "w").close()
        for process in processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if lighthouse:
            lighthouse.shutdown()
    from importlib.metadata import PackageNotFoundError, version
    versions = {}
    for name in ("torch", "torchft", "torchft-nightly"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            pass
    print(json.dumps(dict(peer=a.system, versions=versions, workers=a.workers, batch=a.batch, kills=a.kills,
                          survived=len(lost), lost_s=lost, usual_step_s=usual, checkpoint_every=a.checkpoint_every,
                          heartbeat_timeout_ms=a.heartbeat_timeout_ms, join_timeout_ms=a.join_timeout_ms, failed=failed)))


if __name__ == "__main__":
    socket.setdefaulttimeout(30)
    main()
