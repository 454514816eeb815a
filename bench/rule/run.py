"""Runs rules in virtual time and appends a line per run to an ndjson file. Runs that are there already are not made again.

    PACELINE=paceline python3 bench/rule/run.py PHASE [WORKERS...]

Phases: see PHASES at the end. Standard library only.
"""

import json
import os
import pathlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = os.environ.get("PACELINE", "paceline")
RATES = [0.01, 0.02, 0.05, 0.1, 0.2]
TARGETS = [0.8, 0.9, 0.93, 0.95, 0.96, 0.97]
EXAMPLES = HERE.parent.parent / "examples" / "strategies"

RIVALS = {
    "ring-allreduce": ["--strategy", "ring-allreduce"],
    "ps": ["--strategy", "ps", "--servers", "1"],
    "local 8": ["--strategy", "local"],
    "local 32": ["--strategy", "local", "--local-steps", "32"],
    "gossip": ["--strategy", "gossip"],
    "push-sum": ["--strategy-file", str(EXAMPLES / "push-sum.toml")],
    **{f"step-wise {v}": ["--strategy", "stepwise", "--variant", v]
       for v in ["naive", "rotate", "random-start", "push-sum", "periodic", "chunked"]},
    "one-peer exponential": ["--strategy-file", str(HERE / "rivals/one-peer-exponential.toml")],
    **{f"local {h}, drift": ["--strategy-file", str(HERE / f"rivals/local-drift-{h}.toml")] for h in [8, 16, 32]},
    "streaming local": ["--strategy-file", str(HERE / "rivals/streaming-local.toml")],
}
CANDIDATES = {path.stem: ["--strategy-file", str(path)] for path in sorted((HERE / "candidates").glob("*.toml"))}

SLOW = ["--cluster", str(HERE / "slow-hosts.toml"), "--hosts", "WORKERS"]
CELLS = {
    "no link": [],
    "link": ["--network", "100mbit,1ms"],
    "slow": SLOW,
    "slow, straggler": [*SLOW, "--straggler", "rank=1,factor=4"],
    "slow, lognormal": [*SLOW, "--straggler", "lognormal,sigma=0.5"],
}
KEY = ["rule", "data", "model", "workers", "batch", "epochs", "shard", "cell", "rate", "seed"]


def once(row):
    """One run: what it was, and what came out."""
    cell = [str(row["workers"]) if word == "WORKERS" else word for word in CELLS[row["cell"]]]
    words = [PROGRAM, "simulate", "--learn", "--no-record", "--json", "--quiet", *row["how"],
             "--data", row["data"], "--model", row["model"], "--workers", str(row["workers"]), "--batch", str(row["batch"]),
             "--epochs", str(row["epochs"]), "--eval-every", "5", "--shard", row["shard"], "--lr", str(row["rate"]),
             "--seed", str(row["seed"]), *cell, *row.get("more", [])]
    lock = ["flock", "-s", os.environ["LOCK"]] if "LOCK" in os.environ else []
    ran = subprocess.run([*lock, "nice", "-n", "10", *words], capture_output=True, text=True)
    out = {key: row[key] for key in KEY}
    if ran.returncode != 0:
        # What diverges is a result too.
        return {**out, "failed": ran.stderr.strip().splitlines()[-1][:160] if ran.stderr.strip() else str(ran.returncode)}
    reached, result = {}, None
    for line in ran.stdout.splitlines():
        event = json.loads(line)
        if event["type"] == "evaluation" and event["accuracy"] is not None:
            for target in TARGETS:
                if event["accuracy"] >= target and str(target) not in reached:
                    reached[str(target)] = [event["step"], round(event["train_s"], 6)]
        elif event["type"] == "result":
            result = event
    ranks = [rank for rank in result["ranks"] if rank["role"] == "worker"]
    lowest = (result["replicas"] or {}).get("min_accuracy", result["final_accuracy"])
    return {**out, "steps": result["steps"], "seconds": round(result["seconds"]["train"], 6),
            "accuracy": result["final_accuracy"], "lowest": lowest, "loss": result["final_loss"],
            "sent": round(sum(rank["sent_bytes"] for rank in ranks) / len(ranks) / max(1, result["steps"])), "reached": reached}


def load(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(name, rows):
    path = HERE / f"{name}.ndjson"
    ident = lambda row: json.dumps([row[key] for key in KEY])
    known = {ident(row) for row in load(path)}
    rows = [row for row in rows if ident(row) not in known]
    print(f"{name}: {len(rows)} runs", file=sys.stderr)
    with ThreadPoolExecutor(int(os.environ.get("LANES", "1"))) as pool, path.open("a") as out:
        for n, done in enumerate(pool.map(once, rows)):
            out.write(json.dumps(done, separators=(",", ":")) + "\n")
            out.flush()
            if n % 100 == 99:
                print(f"  {n + 1}", file=sys.stderr)


def row(rule, how, workers, shard, cell, rate, seed, data="digits", model="mlp", batch=8, epochs=30, more=()):
    return dict(rule=rule, how=how, workers=workers, shard=shard, cell=cell, rate=rate, seed=seed, data=data, model=model,
                batch=batch, epochs=epochs, more=list(more))


def screen(workers):
    """Candidates and a few rivals on one development seed: where is it worth looking?"""
    some = {name: RIVALS[name] for name in ["ring-allreduce", "local 8", "local 32", "step-wise chunked", "one-peer exponential", "streaming local"]}
    return [row(rule, how, p, shard, "link", rate, 1)
            for p in workers for shard in ["iid", "by-label"] for rule, how in {**some, **CANDIDATES}.items() for rate in RATES]


TO_TARGET = ["--target-accuracy", "0.95", "--stop-at-target"]


def laps(workers):
    """How long a lap, how much drift: time to the target, one development seed."""
    some = {name: RIVALS[name] for name in ["ring-allreduce", "local 8", "local 32", "local 8, drift", "local 16, drift", "local 32, drift",
                                            "step-wise chunked"]}
    new = {name: how for name, how in CANDIDATES.items() if name.startswith("travelling")}
    return [row(rule, how, p, shard, "link", rate, 1, epochs=120, more=TO_TARGET)
            for p in workers for shard in ["iid", "by-label"] for rule, how in {**some, **new}.items() for rate in RATES[1:]]


PHASES = {"screen": screen, "laps": laps}

if __name__ == "__main__":
    phase = sys.argv[1]
    run(phase, PHASES[phase]([int(p) for p in sys.argv[2:]] or [4, 8, 16, 32]))
