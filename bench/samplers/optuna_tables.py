"""Optuna's samplers on a table: which rows they look at, in which order.

Usage: optuna_tables.py TABLE SPEC.json SEEDS EVALUATIONS OUT.ndjson

SPEC names the axes, the objective (minimised), and one constraint `metric >= least`. Each line of OUT is one
seed of one sampler: the row numbers in the order in which they were first asked for. A row that a sampler asks
for again costs it nothing (its trial is told, but not counted), which favours Optuna. Numeric axes are offered
as ordered integers, names as categories. A combination that is not in the table is mapped as SPEC says.
"""

import csv
import gzip
import json
import sys
import time
import warnings

import optuna

warnings.simplefilter("ignore")
optuna.logging.set_verbosity(optuna.logging.ERROR)


def read(path):
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


def main():
    table, spec, seeds, evaluations, out = sys.argv[1:6]
    rows = read(table)
    spec = json.load(open(spec))
    # Optuna needs a product of axes. Where the number of workers that exist depends on the machine, their product
    # with the machine's cores is a full axis: Optuna gets that one.
    for row in rows:
        for name, rule in spec.get("derived", {}).items():
            row[name] = str(float(row[rule["times"]]) * rule["factor"][row[rule["by"]]])
    axes = spec["optuna_axes"]
    levels = {}
    for axis in axes:
        found = {row[axis] for row in rows}
        numeric = all(number(v) is not None for v in found)
        levels[axis] = (sorted(found, key=number) if numeric else sorted(found), numeric)
    index = {tuple(row[a] for a in axes): i for i, row in enumerate(rows)}
    assert len(index) == len(rows) and len(rows) == eval("*".join(str(len(v)) for v, _ in levels.values()))
    metric, least = spec["constraint"]

    def constraint(trial):
        return (least - trial.user_attrs["metric"],)

    samplers = {
        "optuna-tpe": lambda seed: optuna.samplers.TPESampler(
            seed=seed, multivariate=True, constraints_func=constraint
        ),
        "optuna-gp": lambda seed: optuna.samplers.GPSampler(
            seed=seed, constraints_func=constraint, deterministic_objective=True
        ),
    }
    with open(out, "w") as file:
        for name, make in samplers.items():
            for seed in range(1, int(seeds) + 1):
                study = optuna.create_study(direction="minimize", sampler=make(seed))
                order, spent = [], []
                for _ in range(2 * int(evaluations)):
                    start = time.perf_counter()
                    trial = study.ask()
                    choice = []
                    for axis in axes:
                        values, numeric = levels[axis]
                        if numeric:
                            choice.append(values[trial.suggest_int(axis, 0, len(values) - 1)])
                        else:
                            choice.append(trial.suggest_categorical(axis, values))
                    spent.append(time.perf_counter() - start)
                    row = index[tuple(choice)]
                    trial.set_user_attr("metric", float(rows[row][metric]))
                    study.tell(trial, float(rows[row][spec["objective"]]))
                    if row not in order:
                        order.append(row)
                    if len(order) == int(evaluations):
                        break
                line = {"sampler": name, "seed": seed, "rows": order, "trials": len(study.trials)}
                line["suggest_s_median"] = sorted(spent)[len(spent) // 2]
                file.write(json.dumps(line) + "\n")
                file.flush()


main()
