"""Runs one system of the study and prints its figures as one line of JSON. `--prepare` looks for what all of them need."""

import argparse
import ctypes
import fcntl
import json
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent

# Each peer: its script, the words that start it, and the modules that it needs with pip's names for them.
PEERS = {PEERS}

# Ways of Paceline: flags of `paceline train`.
OURS = {OURS}

# A thread for each worker, whatever it computes with.
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", PYTHONDONTWRITEBYTECODE="1")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", nargs="?", choices=[*OURS, *PEERS])
    parser.add_argument("--prepare", action="store_true", help="look for packages and export the dataset; run nothing")
    parser.add_argument("--paceline", default="paceline", help="the program")
    parser.add_argument("--data", default="synthetic", help="a dataset of Paceline's (`paceline data`)")
    parser.add_argument("--model", choices=["mlp", "lenet"], default="lenet")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="samples per worker and step")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if (args.system is None) != args.prepare:
        parser.error("either the name of a system or --prepare is needed")
    return args


def give_up(problem):
    sys.exit(f"error: {problem}")


def version_of(peer, module, package):
    """A module's version; where it cannot be imported, what to install."""
    code = f"import sys, {module}; print(getattr(sys.modules[{module.split('.')[0]!r}], '__version__', 'unknown'))"
    tried = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    if tried.returncode == 0:
        return tried.stdout.split()[-1]
    why = (tried.stderr.strip() or "no reason was given").splitlines()[-1]
    give_up(
        f"{peer} needs the Python package {package}, and {sys.executable} cannot import {module} ({why}); "
        f"install it: {sys.executable} -m pip install {package}"
    )


def prepare(args):
    """Versions of what is needed; the dataset is left in a folder."""
    found = {"python": sys.version.split()[0]}
    for name, peer in PEERS.items():
        for module, package in peer["packages"].items():
            if package not in found:
                found[package] = version_of(name, module, package)
    folder = HERE / "data" / args.data
    if not folder.is_dir():
        part = folder.with_name(f"{args.data}.part-{os.getpid()}")
        words = [args.paceline, "data", "export", args.data, "--to", str(part)]
        tried = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if tried.returncode != 0:
            shutil.rmtree(part, ignore_errors=True)
            give_up(f"the dataset {args.data} cannot be exported: {tried.stderr.strip().removeprefix('error: ')}")
        try:
            part.rename(folder)
        except OSError:
            # Another study was faster.
            shutil.rmtree(part, ignore_errors=True)
    print(json.dumps(found))


def apart():
    """Puts this process and all that it starts into a network of its own with nothing but loopback, so that all bytes
    that are counted there are its own; says whether that worked (it needs root)."""
    if os.geteuid() != 0 or ctypes.CDLL(None).unshare(0x40000000) != 0:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        flags = struct.pack("16sh14x", b"lo", 0x1 | 0x40)
        fcntl.ioctl(any_socket, 0x8914, flags)
    return True


def loopback_bytes():
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[8])
    return 0


def last_object(words):
    """Runs a program; the last line of its output that is a JSON object."""
    ran = subprocess.run(words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    sys.stderr.write(ran.stderr)
    if ran.returncode != 0:
        said = [line.strip() for line in ran.stderr.splitlines() if line.strip()]
        causes = [line for line in said if re.search(r"(Error|error|Exception)\b.*: |(Signal|exitcode) ", line)]
        why = (causes or said or ["nothing was said"])[-1].removeprefix("error: ")
        give_up(f"{why} ({' '.join(words[:3])} … ended with status {ran.returncode})")
    for line in reversed(ran.stdout.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    give_up(f"no figures in what {words[0]} printed")


def workload(args, data):
    """The arguments that all systems have."""
    flags = {"data": data, "model": args.model, "batch": args.batch, "steps": args.steps, "lr": args.lr,
             "momentum": args.momentum, "seed": args.seed}
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def ours(args):
    """`paceline train`: its result has the figures. It records nothing, as the others do not."""
    words = [args.paceline, "train", "--workers", str(args.workers), "--threads", "1", "--no-record", "--json",
             "--quiet"]
    result = last_object(words + shlex.split(OURS[args.system]) + workload(args, args.data))
    names = ["steps", "samples", "samples_per_s", "train_loss", "final_loss", "final_accuracy"]
    figures = {name: result[name] for name in names}
    seconds = {name: result["seconds"][name] for name in ["startup", "train", "total"]}
    return {**figures, "seconds": seconds, "step_s": seconds["train"] / figures["steps"]}


def theirs(args):
    """A peer's own program, and its figures under the same names."""
    peer = PEERS[args.system]
    places = {"{python}": sys.executable, "{workers}": str(args.workers), "{script}": str(HERE / peer["script"])}
    words = [places.get(word, word) for word in peer["start"].split()]
    folder = HERE / "data" / args.data
    if not folder.is_dir():
        give_up(f"{folder} is not there: run `{sys.executable} {__file__} --prepare --data {args.data}` first")
    started = time.time()
    told = last_object(words + workload(args, str(folder)))
    train = told["train_s"]
    names = ["steps", "samples", "train_loss", "final_loss", "final_accuracy"]
    return {
        **{name: told[name] for name in names},
        "samples_per_s": told["counted_samples"] / train,
        "step_s": train / told["counted_steps"],
        "seconds": {"startup": told["begun_unix_s"] - started, "train": train, "total": time.time() - started},
    }


def main():
    args = arguments()
    if args.prepare:
        return prepare(args)
    counted = apart()
    figures = ours(args) if args.system in OURS else theirs(args)
    if counted:
        figures["loopback_bytes"] = loopback_bytes()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
