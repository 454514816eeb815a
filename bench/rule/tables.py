"""Writes the tables of docs/travelling-averages.md out of the raw runs beside this file. Standard library only.

    python3 bench/rule/tables.py          # writes them
    python3 bench/rule/tables.py --check  # fails if they are out of date
"""

import json
import math
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs" / "travelling-averages.md"
OWN, TARGET = "travelling averages", "0.95"
# A sample of the smallest test split, in points, as the deviation of a rounding.
SAMPLE = 100 / 359 / math.sqrt(12)
SHARDS = {"iid": "alike", "by-label": "by label"}


def load(name):
    path = HERE / f"{name}.ndjson"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tail(t, df):
    """Both tails of Student's t beyond |t|, by Simpson's rule over the angle: t = tan(a)·√df."""
    c = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)
    low, high, n = math.atan(abs(t) / math.sqrt(df)), math.pi / 2, 2000
    f = lambda a: c * max(0.0, math.cos(a)) ** (df - 1)
    h = (high - low) / n
    return 2 * h / 3 * (f(low) + f(high) + sum((4 if i % 2 else 2) * f(low + i * h) for i in range(1, n)))


def quantile(df):
    """Where both tails together are 5%."""
    low, high = 0.0, 1000.0
    for _ in range(60):
        mid = (low + high) / 2
        low, high = (mid, high) if tail(mid, df) > 0.05 else (low, mid)
    return low


def interval(values, step=0.02):
    """Mean, half of the 95% interval, p-value of a mean of zero. A few equal values do not mean that there is no noise: figures come in
    steps (a test sample; five training steps), and the deviation is at least theirs."""
    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return mean, float("inf"), 1.0
    deviation = max(math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1)), step) / math.sqrt(n)
    return mean, quantile(n - 1) * deviation, tail(mean / deviation, n - 1)


def holm(tests, rival):
    """Which of {key: p-value} stay below 5% when all cells against the same rival are looked at."""
    groups = {}
    for key, p in tests.items():
        groups.setdefault(rival(key), {})[key] = p
    return set().union(*map(holm_of_one, groups.values()))


def holm_of_one(tests):
    real, stopped = set(), False
    for i, (key, p) in enumerate(sorted(tests.items(), key=lambda item: item[1])):
        stopped = stopped or p > 0.05 / (len(tests) - i)
        if not stopped:
            real.add(key)
    return real


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


class Judged:
    """Runs on the judging seeds: {(rule, workers or case, shard): {seed: run}}."""

    def __init__(self, names, key):
        self.runs = {}
        longer = {(r["rule"], r["workers"], r["shard"], r["seed"]): r for r in load("longer")}
        for run in [r for name in names for r in load(name)]:
            more = longer.get((run["rule"], run["workers"], run["shard"], run["seed"]), {}) if names == ["judge"] else {}
            reached = run.get("reached", {}).get(TARGET) or more.get("reached", {}).get(TARGET)
            self.runs.setdefault((run["rule"], key(run), run["shard"]), {})[run["seed"]] = {**run, "to": reached}

    def accuracies(self, key):
        return {seed: 100 * run["accuracy"] for seed, run in self.runs.get(key, {}).items() if run.get("accuracy") is not None}

    def times(self, key, scale=None):
        """Seconds to the target by seed; with `scale`, steps times a period."""
        runs = {seed: run["to"] for seed, run in self.runs.get(key, {}).items()}
        return {seed: to and (to[0] * scale if scale else to[1]) for seed, to in runs.items()}


def ratio(theirs, ours):
    """Logarithms of how many times longer a rival takes, for seeds where both arrive; and how many of its seeds arrive."""
    both = [seed for seed in theirs if theirs[seed] and ours.get(seed)]
    return [math.log(theirs[s] / ours[s]) for s in both], sum(1 for t in theirs.values() if t), len(theirs)


def told_ratio(logs, arrived, of, real):
    if not logs:
        return f"arrives in {arrived} of {of} runs, ours in none of these" if arrived else f"never ({of} runs)"
    mean, half, _ = interval(logs)
    span = f" [{math.exp(mean - half):.2g}, {math.exp(mean + half):.2g}]" if half < 50 else ""
    some = f", {arrived} of {of} arrive" if arrived < of else ""
    return f"{math.exp(mean):.3g}{span}{' *' if real else ''}{some}"


def period_of(rule, cell="link"):
    return {r["workers"]: r["seconds"] / r["steps"] for r in load("times") if r["rule"] == rule and r["cell"] == cell}


def columns(judged):
    return sorted({(place, shard) for _, place, shard in judged.runs}, key=lambda c: (str(type(c[0])), c[0], c[1] == "by-label"))


def rules(judged):
    return sorted({rule for rule, *_ in judged.runs if rule != OWN})


def times_table(judged, of_column):
    tests, cells = {}, {}
    for place, shard in columns(judged):
        ours = judged.times((OWN, place, shard))
        for rule in rules(judged):
            theirs = judged.times((rule, place, shard))
            if theirs:
                logs, arrived, of = ratio(theirs, ours)
                cells[rule, place, shard] = logs, arrived, of
                if len(logs) > 1:
                    tests[rule, place, shard] = interval(logs)[2]
    real = holm(tests, lambda key: key[0])
    head = ["rule"] + [of_column(place, shard) for place, shard in columns(judged)]
    own = [f"**{OWN}, s**"]
    for column in columns(judged):
        ours = judged.times((OWN, *column))
        arrived = [t for t in ours.values() if t]
        mean = math.exp(sum(map(math.log, arrived)) / len(arrived)) if arrived else None
        some = "" if len(arrived) == len(ours) else f", {len(arrived)} of {len(ours)} arrive"
        own.append(f"{mean:.3f} s{some}" if arrived else f"never ({len(ours)} runs)")
    rows = [own]
    # Replicas differ: who wants one model at the end pays for one ring all-reduce of models.
    period = period_of("ring-allreduce")
    if all(place in period for place, _ in columns(judged)):
        row = ["ring-allreduce, if ours ends with an all-reduce"]
        for place, shard in columns(judged):
            ours = {seed: t and t + period[place] for seed, t in judged.times((OWN, place, shard)).items()}
            logs, arrived, of = ratio(judged.times(("ring-allreduce", place, shard)), ours)
            row.append(told_ratio(logs, arrived, of, False))
        rows.append(row)
        # Exact paths learn the same: ring all-reduce's steps with their periods.
        for rule in ["direct", "halving-doubling", "ps"]:
            row = [f"{rule} (steps of ring-allreduce)"]
            for place, shard in columns(judged):
                if place not in period_of(rule):
                    row.append("–")
                    continue
                theirs = judged.times(("ring-allreduce", place, shard), period_of(rule)[place])
                row.append(told_ratio(*ratio(theirs, judged.times((OWN, place, shard))), False))
            rows.append(row)
    for rule in rules(judged):
        row = [told_ratio(*cells[rule, *c], (rule, *c) in real) if (rule, *c) in cells else "–" for c in columns(judged)]
        rows.append([rule, *row])
    wins = sum(1 for key in real if interval(cells[key][0])[0] > 0)
    return table(head, rows), len(tests), wins, len(real) - wins


def accuracy_table(judged, of_column):
    tests, cells = {}, {}
    for place, shard in columns(judged):
        ours = judged.accuracies((OWN, place, shard))
        for rule in rules(judged):
            theirs = judged.accuracies((rule, place, shard))
            both = [theirs[s] - ours[s] for s in theirs if s in ours]
            if both:
                cells[rule, place, shard] = sum(theirs.values()) / len(theirs), both
                if len(both) > 1:
                    tests[rule, place, shard] = interval(both, SAMPLE)[2]
    real = holm(tests, lambda key: key[0])
    rows = []
    own = [f"**{OWN}**"]
    for column in columns(judged):
        every = judged.runs.get((OWN, *column), {}).values()
        runs = [run for run in every if run.get("accuracy") is not None]
        ours = [100 * run["accuracy"] for run in runs]
        mean, half, _ = interval(ours, SAMPLE) if ours else (0, 0, 1)
        lowest = 100 * sum(run["lowest"] for run in runs) / max(1, len(ours))
        lost = f"; {len(every) - len(ours)} of {len(every)} runs diverge" if len(ours) < len(every) else ""
        own.append(f"{mean:.1f} ± {half:.1f} (lowest replica {lowest:.0f}){lost}")
    rows.append(own)
    for rule in rules(judged):
        row = []
        for column in columns(judged):
            if (rule, *column) not in cells:
                row.append("–")
                continue
            _, both = cells[rule, *column]
            mean, half, _ = interval(both, SAMPLE)
            every = judged.runs[rule, *column].values()
            lost = sum(1 for run in every if run.get("accuracy") is None)
            diverged = f"; {lost} of {len(every)} runs diverge" if lost else ""
            row.append(f"{mean:+.1f} ± {half:.1f}{' *' if (rule, *column) in real else ''}{diverged}")
        rows.append([rule, *row])
    return table(["rule"] + [of_column(*c) for c in columns(judged)], rows)


def cells_table(judged):
    """Ratios in every cell: steps on the judging seeds times the period in that cell."""
    period = {(r["rule"], r["workers"], r["cell"]): r["seconds"] / r["steps"] for r in load("times")}
    wanted = ["ring-allreduce", "step-wise chunked", "local 8", "local 32"]
    tests, found = {}, {}
    for cell in ["no link", "link", "slow", "slow, straggler", "slow, lognormal"]:
        for place, shard in columns(judged):
            for rule in wanted:
                if (rule, place, cell) in period and (rule, place, shard) in judged.runs:
                    ours = judged.times((OWN, place, shard), period[OWN, place, cell])
                    theirs = judged.times((rule, place, shard), period[rule, place, cell])
                    found[cell, place, shard, rule] = ratio(theirs, ours)
                    if len(found[cell, place, shard, rule][0]) > 1:
                        tests[cell, place, shard, rule] = interval(found[cell, place, shard, rule][0])[2]
    real = holm(tests, lambda key: key[3])
    rows = []
    for cell in ["no link", "link", "slow", "slow, straggler", "slow, lognormal"]:
        for place, shard in columns(judged):
            if any((cell, place, shard, rule) in found for rule in wanted):
                own = period[OWN, place, cell] * 1e3
                row = [told_ratio(*found[cell, place, shard, rule], (cell, place, shard, rule) in real)
                       if (cell, place, shard, rule) in found else "–" for rule in wanted]
                rows.append([cell, str(place), SHARDS[shard], f"{own:.2f}", *row])
    return table(["cell", "workers", "data", "ms per step"] + wanted, rows)


def periods_table():
    period = {(r["rule"], r["workers"]): (1e3 * r["seconds"] / r["steps"], r["sent"]) for r in load("times") if r["cell"] == "link"}
    workers = sorted({w for _, w in period})
    names = sorted({rule for rule, _ in period}, key=lambda rule: period.get((rule, 16), (0,))[0])
    rows = [[f"**{r}**" if r == OWN else r, *[f"{period[r, w][0]:.1f}" if (r, w) in period else "–" for w in workers],
             f"{period[r, 16][1] / 1e3:.0f}" if (r, 16) in period else "–"] for r in names]
    return table(["rule"] + [f"{w} workers, ms" for w in workers] + ["kB sent per worker and step, 16 workers"], rows)


def rates_table():
    sys.path.insert(0, str(HERE))
    import run

    rates = {(k[0], k[3], k[4]): v for k, v in run.searched("screen", "rates", "own_rates").items()}
    known = {(r["rule"], r["workers"], r["shard"]) for r in load("judge")}
    columns = sorted({(w, s) for _, w, s in known}, key=lambda c: (c[0], c[1] == "by-label"))
    names = sorted({rule for rule, *_ in known})
    rows = [[rule, *[str(rates.get((rule, *c), "–")) if (rule, *c) in known else "–" for c in columns]] for rule in names]
    return table(["rule"] + [f"{w}, {SHARDS[s]}" for w, s in columns], rows)


def main():
    judged = Judged(["judge"], lambda run: run["workers"])
    cases = Judged(["cases"], lambda run: f"{run['data']}, {run['model']}, {run['workers']}")
    of = lambda place, shard: f"{place}, {SHARDS[shard]}"
    to_target, tests, wins, losses = times_table(judged, of)
    parts = {
        "time": to_target + f"\n\n{tests} comparisons; after Holm's correction (for each rival over its cells) {wins} rivals really take longer, {losses} really arrive earlier.",
        "accuracy": accuracy_table(judged, of),
        "cells": cells_table(judged),
        "periods": periods_table(),
        "rates": rates_table(),
    }
    if cases.runs:
        parts["cases"] = times_table(cases, of)[0]
        parts["cases-accuracy"] = accuracy_table(cases, of)
    text = PAGE.read_text()
    for name, part in parts.items():
        begin, end = f"<!-- {name}: made by bench/rule/tables.py -->\n", f"<!-- end of {name} -->"
        if begin in text:
            before, rest = text.split(begin)
            text = before + begin + part + "\n" + end + rest.split(end)[1]
        else:
            print(f"no place for {name}:\n{part}", file=sys.stderr)
    if "--check" in sys.argv:
        sys.exit(text != PAGE.read_text())
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
