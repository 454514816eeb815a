"""Reads a store with the package `paceline`, and a study's exports with pandas and TensorBoard; prints it as JSON.

usage: read_store.py STORE PARQUET_FOLDER CSV_FOLDER TENSORBOARD_FOLDER
"""

import json
import pathlib
import sys

import pandas
import paceline
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

store, parquet, csv, boards = map(pathlib.Path, sys.argv[1:])

assert "pandas" not in vars(paceline.store), "pandas is imported when it is needed"
runs = paceline.load(store)
assert runs.index.name == "run" and runs.index.is_unique
assert str(runs.started.dtype).startswith("datetime64") and runs.started.dt.tz is not None
whole = paceline.load(store / "paceline.db", archived=True)
steps = paceline.steps(store, "first")
evaluations = paceline.evaluations(store, "last")

errors = []
for name in ("nobody", "r"):
    try:
        paceline.steps(store, name)
    except paceline.StoreError as error:
        errors.append(str(error))
try:
    paceline.load(store / "nothing")
except paceline.StoreError as error:
    errors.append(str(error))

named = runs[runs.name == "first"].iloc[0]
of_parquet = {name: pandas.read_parquet(parquet / f"{name}.parquet") for name in ("runs", "ranks")}
of_csv = {name: pandas.read_csv(csv / f"{name}.csv") for name in ("runs", "ranks")}
for name, table in of_parquet.items():
    # Two formats, one content.
    pandas.testing.assert_frame_equal(table, of_csv[name], check_dtype=False)

tensorboard = {}
for folder in sorted(boards.iterdir()):
    accumulator = EventAccumulator(str(folder / "run"), size_guidance={"scalars": 0})
    accumulator.Reload()
    tensorboard[folder.name] = accumulator.Scalars("test/accuracy")[-1].value

print(
    json.dumps(
        {
            "runs": list(runs.index),
            "all": list(whole.index),
            "studies": runs.study.dropna().value_counts().to_dict(),
            "named": {
                "tags": named.tags,
                "note": named.note,
                "state": named.state,
                "workers": int(named.workers),
                "lr": named.lr,
                "result.steps": int(named["result.steps"]),
                "final_accuracy": named.final_accuracy,
                "sent_bytes": int(named.sent_bytes),
                "seconds.train": named["seconds.train"],
            },
            "steps": [len(steps), sorted(map(int, steps["rank"].unique())), float(steps.loss.iloc[-1])],
            "evaluations": [len(evaluations), float(evaluations.accuracy.iloc[-1])],
            "errors": errors,
            "columns": list(of_parquet["runs"].columns),
            "types": {name: str(kind) for name, kind in of_parquet["runs"].dtypes.items()},
            "exported": json.loads(of_parquet["runs"].to_json(orient="records")),
            "tensorboard": tensorboard,
        }
    )
)
