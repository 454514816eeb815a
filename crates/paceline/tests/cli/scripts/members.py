"""A script in plain Python whose gradients are whole numbers that depend on rank and step alone, so that every sum is exact,
in any order; and ways to be killed in the middle of a step."""

import argparse
import json
import os
import signal
import time
from array import array

import paceline.attach as attach

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--out", help="a folder that gets each rank's final parameters")
parser.add_argument("--kill", default="", help="RANK:STEP:PLACE, several of them separated by commas")
parser.add_argument("--fail", default="", help="RANK:STEP: it raises an exception there")
parser.add_argument("--stop", default="", help="RANK:STEP: it is stopped in the middle of that step's backward pass")
parser.add_argument("--sleep", type=float, default=0.0, help="seconds of each step")
parser.add_argument("--fork", action="store_true", help="each script has a child that stays")
parser.add_argument("--pids", help="a file that gets a line for each process of a script")
parser.add_argument("--until", help="a file: once it is there, the script leaves before its next step")
parser.add_argument("--late", help="a file that says what becomes of scripts that are started once it is there")
parser.add_argument("--keep", choices=["all", "nothing", "never"], default="all", help="how it saves itself")
args = parser.parse_args()

late = ""
if args.late and os.path.exists(args.late):
    with open(args.late) as file:
        late = file.read()
if late == "fails":
    raise ValueError("a test asked for it")
if late == "killed":
    os.kill(os.getpid(), signal.SIGKILL)

SIZES = [3, 40, 6 if late == "differs" else 5]
run = attach.attach([(f"t{n}", [size]) for n, size in enumerate(SIZES)], framework="plain Python")


def note(pid):
    if args.pids:
        with open(args.pids, "a") as file:
            file.write(f"{pid}\n")


note(os.getpid())
if args.fork and os.fork() == 0:
    note(os.getpid())
    time.sleep(1000)
    os._exit(0)


def die(step, place):
    if f"{run.rank}:{step}:{place}" in args.kill.split(","):
        os.kill(os.getpid(), signal.SIGKILL)


def gradient(rank, step, tensor):
    """The same in the test that knows what must come of it: a multiple of 1, 2, 3 and 4 workers."""
    return 12.0 * ((rank + 1) * (step % 5 + 1) + tensor)


for n, size in enumerate(SIZES):
    run.parameter(n)[:] = array("f", [100.0 * (run.rank + 1) + n] * size)
run.start()
own = [array("f", run.parameter(n)) for n in range(len(SIZES))]
# As an optimizer's: what all steps so far have left, of each tensor.
memory = [0.0] * len(SIZES)
if run.kept:
    kept = json.loads(run.kept)
    memory = kept.pop("memory")
    assert kept == {"step": run.step, "own": [list(tensor) for tensor in own]}, (kept, run.step, own)
if late == "begins and fails":
    raise ValueError("a test asked for it")
if late == "begins and is killed":
    os.kill(os.getpid(), signal.SIGKILL)


def settled_or_die(step, wait):
    """Waits for the end of the exchange, or is killed in it."""

    def waits(kind):
        die(step, "exchange")
        return wait(kind)

    return waits


wait = run._wait
for step in range(run.step, args.steps):
    time.sleep(args.sleep)
    if args.until and os.path.exists(args.until):
        break
    die(step, "begin")
    if args.fail == f"{run.rank}:{step}":
        raise ValueError("a test asked for it")
    for n in reversed(range(len(SIZES))):
        run.gradient(n)[:] = array("f", [gradient(run.rank, step, n) * run.scale] * SIZES[n])
        run.ticket([n])
        die(step, f"tensor{n}")
        if n == 1 and args.stop == f"{run.rank}:{step}":
            os.kill(os.getpid(), signal.SIGSTOP)
    if run.used is not None:
        run.gradients[run.used : run.used + len(SIZES)] = array("f", [1.0] * len(SIZES))
    run._wait = settled_or_die(step, wait)
    settled = run.done(samples=4, loss=float(step))
    run._wait = wait
    if settled.over:
        break
    die(step, "settled")
    if run.used is not None:
        used = run.gradients if run.takes == "gradients" else run.parameters
        assert all(flag > 0 for flag in used[run.used : run.used + len(SIZES)])
    for n in range(len(SIZES)):
        mean = run.gradient(n) if run.takes == "gradients" else run.parameter(n)
        own[n] = array("f", [v - g / 64.0 for v, g in zip(own[n], mean)])
        memory[n] += mean[0]
    run.taken()
    die(step, "taken")
    run.report(loss=float(step))
    run.poll()
    if run.save_wanted and args.keep != "never":
        for n, tensor in enumerate(own):
            run.parameter(n)[:] = tensor
        kept = {"step": step + 1, "own": [list(tensor) for tensor in own], "memory": memory}
        run.save(json.dumps(kept).encode() if args.keep == "all" else b"")
    if run.over:
        break
for n, tensor in enumerate(own):
    run.parameter(n)[:] = tensor
die(args.steps, "end")
if args.out:
    with open(os.path.join(args.out, str(run.rank)), "w") as file:
        json.dump({"step": run.step, "own": [list(tensor) for tensor in own], "memory": memory}, file)
