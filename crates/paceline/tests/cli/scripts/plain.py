"""A script in plain Python: three tensors that move towards a target, and ways to misbehave."""

import argparse
import atexit
import json
import os
import signal
import struct
import sys
import threading
import time
from array import array

import paceline.attach as attach

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--lr", type=float, default=0.25)
parser.add_argument("--sleep", type=float, default=0.0, help="seconds of each step")
parser.add_argument("--pids", help="a file that gets a line for each process")
parser.add_argument("--misbehave", default="")
parser.add_argument("--at", type=int, default=3, help="the step at which it does")
parser.add_argument("--who", type=int, default=1, help="the rank that does")
parser.add_argument("--environment", help="a variable whose value is printed")
parser.add_argument("--report-every", type=int, default=0)
parser.add_argument("--no-loss", action="store_true", help="say nothing of the loss")
parser.add_argument("--arrivals", action="store_true", help="take parts of the mean gradient as they come")
args = parser.parse_args()


def note(pid):
    if args.pids:
        with open(args.pids, "a") as file:
            file.write(f"{pid}\n")


note(os.getpid())
if args.environment:
    print(f"{args.environment} is {os.environ.get(args.environment)}")
rank = int(os.environ["PACELINE_RANK"])
bad = args.misbehave if rank == args.who else ""
if bad in ("never", "version"):
    # The run ends at once: the test wants to see every script's process gone, so all of them must have begun.
    deadline = time.monotonic() + 60
    while len(open(args.pids).readlines()) < int(os.environ["PACELINE_WORKERS"]):
        assert time.monotonic() < deadline, "the other scripts did not begin"
        time.sleep(0.01)
if bad == "version":
    attach.PROTOCOL = 7
if bad == "other-model":
    SIZES = [4, 300]
else:
    SIZES = [4, 300, 5]
if bad == "never":
    sys.exit(0)
if args.misbehave == "fork":
    child = os.fork()
    if child == 0:
        note(os.getpid())
        time.sleep(1000)
        os._exit(0)
run = attach.attach([(f"t{n}", [size]) for n, size in enumerate(SIZES)], framework="plain Python", arrivals=args.arrivals)
if args.misbehave == "fork-late":
    child = os.fork()
    if child == 0:
        note(os.getpid())
        time.sleep(1000)
        os._exit(0)


def misbehave():
    if bad == "raise":
        raise ValueError("a test asked for it")
    if bad in ("end-slowly", "close-slowly"):
        # Something of its own holds the interpreter up, before or after its connection is closed.
        if bad == "close-slowly":
            atexit.register(time.sleep, 60)
        else:
            threading.Thread(target=time.sleep, args=(60,)).start()
        raise ValueError("a test asked for it")
    if bad == "exit":
        sys.exit(3)
    if bad == "vanish":
        os._exit(0)
    if bad == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if bad == "stop":
        run.ticket([2])
        os.kill(os.getpid(), signal.SIGSTOP)
    if bad == "torn":
        run._socket.sendall(struct.pack("<II", 5, 3) + b"abc")
    if bad == "cut":
        run._socket.sendall(struct.pack("<II", 5, 400) + b"abc")
        os._exit(0)
    if bad == "nonsense":
        run._socket.sendall(struct.pack("<II", 99, 0))
    if bad == "twice":
        run.ticket([2])
        run.ticket([2])
    if bad == "lost-child":
        child = os.fork()
        if child == 0:
            time.sleep(1000)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise RuntimeError(f"child {child} was killed")
    if bad == "leave":
        sys.exit(0)


own = [array("f", [1.0 + n + rank] * size) for n, size in enumerate(SIZES)]
for n, tensor in enumerate(own):
    run.parameter(n)[:] = tensor
run.start()
own = [array("f", run.parameter(n)) for n in range(len(SIZES))]
first = 0
if run.kept:
    kept = json.loads(run.kept)
    first = kept["step"]
    assert first == run.step, (first, run.step)
    assert kept["own"] == [list(tensor) for tensor in own]
came = {}  # element by element, what the mean gradient was when it was said to be there


def take_arrived():
    for begin, length in run.arrived:
        came.update((n, run.gradients[n]) for n in range(begin, begin + length))
    run.arrived.clear()


run.on_arrived = take_arrived
for step in range(first, args.steps):
    time.sleep(args.sleep)
    if step == args.at:
        misbehave()
    gradients = [[value - (rank + 1) for value in tensor] for tensor in own]
    moved = [array("f", [v - args.lr * g for v, g in zip(t, gs)]) for t, gs in zip(own, gradients)]
    if run.gives == "gradients":
        for n in reversed(range(len(SIZES))):
            run.gradient(n)[:] = array("f", [g * run.scale for g in gradients[n]])
            if bad != "twice" or step != args.at or n != 2:
                run.ticket([n])
        if run.used is not None:
            run.gradients[run.used : run.used + len(SIZES)] = array("f", [1.0] * len(SIZES))
    for n in range(len(SIZES)):
        if run.gives == "updates":
            run.gradient(n)[:] = array("f", [(p - q) * run.scale for p, q in zip(moved[n], run.parameter(n))])
        elif run.gives == "parameters":
            run.parameter(n)[:] = moved[n]
        elif run.gives == "nothing":
            own[n] = moved[n]
    if args.no_loss:
        settled = run.done(samples=4, forward_ns=1000)
    else:
        settled = run.done(samples=4, loss=float(step), forward_ns=1000)
    if args.arrivals and run.takes == "gradients" and not settled.over:
        # All of it was told of, the last of it perhaps in the same breath as the end, and none of it has changed since.
        take_arrived()
        assert len(came) == sum(SIZES) + (0 if run.used is None else len(SIZES)), len(came)
        assert all(run.gradients[n] == value for n, value in came.items())
    elif not args.arrivals:
        assert not came, "nobody asked for it"
    came.clear()
    if settled.over:
        break
    for n in range(len(SIZES)):
        if run.takes == "parameters":
            own[n] = array("f", run.parameter(n))
        elif run.takes != "nothing":
            mean = run.gradient(n) if run.takes == "gradients" else run.parameter(n)
            own[n] = array("f", [v - args.lr * g for v, g in zip(own[n], mean)])
    if bad == "hang" and step == args.at:
        time.sleep(1000)
    run.taken()
    if args.report_every and (step + 1) % args.report_every == 0:
        run.report(accuracy=min(1.0, (step + 1) / 10))
    run.poll()
    if run.save_wanted:
        for n, tensor in enumerate(own):
            run.parameter(n)[:] = tensor
        run.save(json.dumps({"step": step + 1, "own": [list(tensor) for tensor in own]}).encode())
    if run.over:
        break
for n, tensor in enumerate(own):
    run.parameter(n)[:] = tensor
if not args.report_every:
    run.report(accuracy=0.75, loss=0.5, perplexity=3.5)
print(f"rank {rank} has ended at step {run.step}")
if bad == "late":
    raise SystemExit(5)
