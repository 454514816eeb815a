"""Reads a run's exports with the tools that they are for, and prints what they found as JSON.

usage: read_exports.py PARQUET_FOLDER TENSORBOARD_FOLDER TRACE_FILE
"""

import json
import pathlib
import sys

import pyarrow.parquet as parquet
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

tables, boards, trace = map(pathlib.Path, sys.argv[1:])

found = {"parquet": {}, "tensorboard": {}}
for path in sorted(tables.glob("*.parquet")):
    table = parquet.read_table(path)
    table.validate(full=True)
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    found["parquet"][path.stem] = {
        "rows": table.num_rows,
        "types": {field.name: str(field.type) for field in table.schema},
        "sums": {
            name: sum(v for v in values if isinstance(v, (int, float))) for name, values in columns.items()
        },
        "missing": {name: sum(v is None for v in values) for name, values in columns.items()},
        "first": {name: values[0] for name, values in columns.items() if values},
    }

for folder in sorted(boards.iterdir()):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    found["tensorboard"][folder.name] = {
        tag: {"count": len(events), "last_step": events[-1].step, "last": events[-1].value}
        for tag in accumulator.Tags()["scalars"]
        for events in [accumulator.Scalars(tag)]
    }

# The trace format: what chrome://tracing and Perfetto ask of every event.
events = json.loads(trace.read_text())["traceEvents"]
needed = {
    "X": {"name", "pid", "tid", "ts", "dur"},
    "M": {"name", "pid", "args"},
    "C": {"name", "pid", "ts", "args"},
    "i": {"name", "pid", "ts", "s"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
}
for event in events:
    assert needed[event["ph"]] <= event.keys(), event
    assert event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0, event
slices = {}
for event in events:
    if event["ph"] == "X":
        slices.setdefault((event["pid"], event["tid"]), []).append(event)
for track in slices.values():
    # Slices of one track lie inside each other or apart.
    open_until = []
    for event in sorted(track, key=lambda e: (e["ts"], -e["dur"])):
        while open_until and open_until[-1] <= event["ts"] + 1e-3:
            open_until.pop()
        if event["tid"] == 0:
            assert not open_until or event["ts"] + event["dur"] <= open_until[-1] + 1e-3, event
        open_until.append(event["ts"] + event["dur"])
starts = {e["id"]: e for e in events if e["ph"] == "s"}
ends = {e["id"]: e for e in events if e["ph"] == "f"}
assert starts.keys() == ends.keys()
for key, start in starts.items():
    assert start["ts"] <= ends[key]["ts"] and start["pid"] != ends[key]["pid"], (start, ends[key])
found["trace"] = {
    "ranks": sorted({e["pid"] for e in events}),
    "steps": sum(e["ph"] == "X" and e["name"] == "step" for e in events),
    "arrows": len(starts),
}
print(json.dumps(found))
