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
# They learn what ring all-reduce learns, but for rounding: only their times are of interest.
SAME_AS_RING = {name: ["--strategy", name] for name in ["halving-doubling", "direct"]}
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


def timed(row):
    """Virtual time alone: nothing is learnt."""
    cell = [str(row["workers"]) if word == "WORKERS" else word for word in CELLS[row["cell"]]]
    words = [PROGRAM, "simulate", "--no-record", "--json", "--quiet", *row["how"], "--workers", str(row["workers"]), "--batch", "8",
             "--epochs", "30", "--seed", "11", *cell]
    lock = ["flock", "-s", os.environ["LOCK"]] if "LOCK" in os.environ else []
    ran = subprocess.run([*lock, "nice", "-n", "10", *words], capture_output=True, text=True)
    result = json.loads(ran.stdout.splitlines()[-1])
    ranks = [rank for rank in result["ranks"] if rank["role"] == "worker"]
    return {"rule": row["rule"], "workers": row["workers"], "cell": row["cell"], "steps": result["steps"],
            "seconds": round(result["seconds"]["train"], 6),
            "sent": round(sum(rank["sent_bytes"] for rank in ranks) / len(ranks) / result["steps"])}


def times(workers):
    path = HERE / "times.ndjson"
    known = {(r["rule"], r["workers"], r["cell"]) for r in load(path)}
    with path.open("a") as out:
        for p in workers:
            for rule, how in {**RULES, **RIVALS, **SAME_AS_RING}.items():
                for cell in CELLS:
                    if (rule, p, cell) not in known:
                        out.write(json.dumps(timed(dict(rule=rule, how=how, workers=p, cell=cell)), separators=(",", ":")) + "\n")
                        out.flush()


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
    # At first all of them, of which 16 workers with alike data were made; then these, since the machine was busy.
    few = ["travelling-delta", "travelling-lap-8-learn-50-forget-10", "travelling-lap-16-learn-50-forget-0",
           "travelling-lap-16-learn-50-forget-10", "travelling-lap-16-learn-100-forget-20", "travelling-lap-32-learn-50-forget-10"]
    new = {name: CANDIDATES[name] for name in few}
    return [row(rule, how, p, shard, "link", rate, 1, epochs=120, more=TO_TARGET)
            for p in workers for shard in ["by-label", "iid"] for rule, how in {**new, **(some if p == 16 else {})}.items() for rate in RATES[1:4]]


def rates(workers):
    """The search for each rival's own rate, on the development seed; what the screening has is not made again."""
    screened = {(r["rule"], r["workers"], r["shard"], r["rate"]) for r in load(HERE / "screen.ndjson")}
    return [row(rule, how, p, shard, "link", rate, seed) for p in workers for shard in ["iid", "by-label"]
            for rule, how in rivals(p).items() for rate in RATES[1:] for seed in [1]
            if (rule, p, shard, rate) not in screened]


# What `ps` learns is what ring all-reduce learns, bit by bit but for rounding: of it only times are needed.
FIRST = ["ring-allreduce", "local 8", "local 32", "local 8, drift", "local 32, drift", "step-wise chunked", "step-wise random-start",
         "step-wise push-sum", "one-peer exponential"]
FEWER = [name for name in FIRST if name != "local 32, drift"]
# Those that the screening or earlier studies showed to be behind them: with 16 workers only, on three seeds.
SECOND = ["gossip", "push-sum", "step-wise naive", "step-wise rotate", "step-wise periodic", "streaming local"]


def rivals(workers):
    few = {16: FIRST + SECOND, 8: ["ring-allreduce", "step-wise chunked", "local 8"]}
    return {name: RIVALS[name] for name in few.get(workers, FEWER)}


RULES = {
    "travelling averages": ["--strategy-file", str(EXAMPLES / "travelling-averages.toml")],
    "travelling, no drift": ["--strategy-file", str(HERE / "candidates/travelling-lap-16-learn-0-forget-0.toml")],
}
SEEDS = [11, 12, 13, 14, 15]
# On five seeds; others on three.
BASE = {"travelling averages", "ring-allreduce", "local 8", "local 32", "local 8, drift", "local 32, drift", "step-wise chunked",
        "one-peer exponential"}


def own_rates(workers):
    """The same search for the chosen rule, with and without drift."""
    return [row(rule, how, p, shard, "link", rate, 1) for p in workers for shard in ["iid", "by-label"]
            for rule, how in own(p).items() for rate in RATES[1:]]


def own(workers):
    return RULES if workers == 16 else {"travelling averages": RULES["travelling averages"]}


def chosen_rate(rows):
    """The fewest steps to the target; where none reaches it, the highest accuracy."""
    rows = [r for r in rows if r.get("accuracy") is not None]
    there = [r for r in rows if "0.95" in r["reached"]]
    if there:
        return min(there, key=lambda r: (r["reached"]["0.95"][0], -r["accuracy"]))["rate"]
    return max(rows, key=lambda r: r["accuracy"])["rate"]


def searched(*names):
    """Each configuration's own rate."""
    found = {}
    for r in [r for name in names for r in load(HERE / f"{name}.ndjson")]:
        if r["rate"] in RATES[1:] and r["epochs"] == 30 and r["seed"] == 1:
            found.setdefault((r["rule"], r["data"], r["model"], r["workers"], r["shard"]), []).append(r)
    return {key: chosen_rate(rows) for key, rows in found.items()}


def judge(workers):
    """Every rule at its own rate, on seeds that nothing was chosen by."""
    rate = searched("screen", "rates", "own_rates")
    return [row(rule, how, p, shard, "link", rate[rule, "digits", "mlp", p, shard], seed)
            for p in workers for seed in SEEDS for shard in ["iid", "by-label"] for rule, how in {**own(p), **rivals(p)}.items()
            if rule in BASE or seed < 14]


def longer(workers):
    """Those that have not reached the target within 30 passes: at most 120."""
    return [row(r["rule"], {**RULES, **RIVALS}[r["rule"]], r["workers"], r["shard"], "link", r["rate"], r["seed"], epochs=120, more=TO_TARGET)
            for r in load(HERE / "judge.ndjson") if r["workers"] in workers and "0.95" not in r.get("reached", {})]


# Cases that nothing was chosen by: other data, other models, other numbers of workers.
CASES = [
    dict(data="synthetic", model="mlp", workers=12, epochs=2),
    dict(data="digits", model="lenet", workers=6, epochs=15),
]
CASE_RULES = ["ring-allreduce", "step-wise chunked", "local 8", "one-peer exponential"]


def case_row(case, rule, shard, rate, seed):
    more = ["--eval-samples", "500"] if case["data"] == "synthetic" else []
    how = {**RULES, **RIVALS}[rule]
    return row(rule, how, case["workers"], shard, "link", rate, seed, data=case["data"], model=case["model"], epochs=case["epochs"], more=more)


def case_rates(_):
    return [case_row(case, rule, shard, rate, 1) for case in CASES for shard in ["iid", "by-label"]
            for rule in ["travelling averages", *CASE_RULES] for rate in RATES[1:4]]


def cases(_):
    found = {}
    for r in load(HERE / "case_rates.ndjson"):
        found.setdefault((r["data"], r["rule"], r["shard"]), []).append(r)
    rate = {key: chosen_rate(rows) for key, rows in found.items()}
    return [case_row(case, rule, shard, rate[case["data"], rule, shard], seed) for case in CASES for seed in [11, 12, 13]
            for shard in ["iid", "by-label"] for rule in ["travelling averages", *CASE_RULES]]


def half_rate(_):
    """Looked at afterwards: where the rate that the search chose diverges, half of it."""
    return [case_row(case, "travelling averages", "iid", 0.05, seed) for case in CASES for seed in [11, 12, 13]]


def verify(_):
    """The same learnt in another cell: it must be the same, and arrive when steps times the period say."""
    rate = searched("screen", "rates", "own_rates")
    return [row(rule, {**RULES, **RIVALS}[rule], 16, "by-label", "slow, straggler", rate[rule, "digits", "mlp", 16, "by-label"], 11)
            for rule in ["travelling averages", "ring-allreduce", "local 8", "step-wise chunked"]]


PHASES = {"verify": verify, "half_rate": half_rate, "case_rates": case_rates, "cases": cases, "own_rates": own_rates, "judge": judge, "longer": longer, "screen": screen, "laps": laps, "rates": rates}

if __name__ == "__main__":
    phase = sys.argv[1]
    if phase == "times":
        times([int(p) for p in sys.argv[2:]] or [4, 8, 16, 32])
        sys.exit()
    run(phase, PHASES[phase]([int(p) for p in sys.argv[2:]] or [4, 8, 16, 32]))
