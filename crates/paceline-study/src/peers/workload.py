"""What the programs of all peers have in common: arguments, data, and the figures that they print."""

import argparse
import ctypes
import json
import signal
import time

import numpy


def arguments():
    """The same arguments for every system."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="folder of an exported dataset (`paceline data export`)")
    parser.add_argument("--model", choices=["mlp", "lenet"], required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="samples per worker and step")
    parser.add_argument("--steps", type=int, default=100, help="at least 2: the first is start-up")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    die_with_parent()
    if args.steps < 2:
        parser.error("--steps must be at least 2: the first step is start-up")
    return args


def die_with_parent():
    """Ends this process when the one that started it is gone: launchers start workers in sessions of their own."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def load(folder, split):
    """Samples (number, height, width, channels), normalised, and their classes."""
    return numpy.load(f"{folder}/{split}-x.npy"), numpy.load(f"{folder}/{split}-y.npy")


def batches(indices, batch):
    """Whole batches, for ever; `indices(epoch)` are an epoch's samples in their order."""
    epoch = 0
    while True:
        order = indices(epoch)
        for first in range(0, len(order) - batch + 1, batch):
            yield order[first : first + batch]
        epoch += 1


class Clock:
    """The training clock: from the end of the first step, which builds graphs and buffers, to the end of the last."""

    def __init__(self):
        self.begun_unix_s, self.begun = time.time(), time.perf_counter()
        self.seconds = None

    def stop(self):
        self.seconds = time.perf_counter() - self.begun


def report(args, clock, train_loss, final_loss, final_accuracy):
    """Prints what this process measured, as the last line."""
    samples = args.steps * args.workers * args.batch
    print(json.dumps({
        "steps": args.steps,
        "samples": samples,
        "counted_steps": args.steps - 1,
        "counted_samples": samples - args.workers * args.batch,
        "begun_unix_s": clock.begun_unix_s,
        "train_s": clock.seconds,
        "train_loss": float(train_loss),
        "final_loss": float(final_loss),
        "final_accuracy": float(final_accuracy),
    }), flush=True)
