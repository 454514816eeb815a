"""Reads the store of runs: one SQLite database, opened read-only.

The store is written by ``paceline train`` and its relatives, perhaps right now: a reader sees what was committed, and
keeps nobody from writing. ``docs/record.md`` describes every table.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Union

if TYPE_CHECKING:
    import pandas

PathLike = Union[str, "os.PathLike[str]"]

DATABASE = "paceline.db"

# What a row says of a run beside its settings and figures.
_ABOUT = (
    "name",
    "tags",
    "note",
    "study",
    "workload",
    "state",
    "origin",
    "started_s",
    "ended_s",
    "attempts",
    "host",
    "plan_sha256",
    "command",
    "archived",
    "error",
    "version",
    "git_commit",
)

# Figures of a run that has no result yet, and the columns that they are read from.
_SO_FAR = {
    "final_accuracy": "accuracy",
    "train_loss": "train_loss",
    "seconds.train": "train_s",
    "steps": "steps_done",
    "samples": "samples_done",
}


class StoreError(Exception):
    """A store or a run that is not there."""


def load(store: Optional[PathLike] = None, *, archived: bool = False) -> "pandas.DataFrame":
    """All recorded runs: a row each, the latest last, indexed by the run's id.

    :param store: the store's folder (or its ``paceline.db``); ``PACELINE_STORE`` or ``.paceline`` if left out.
    :param archived: whether archived runs are among them.

    Columns: what people call a run (``name``, ``tags`` as a list, ``note``), where it belongs (``study``,
    ``workload``), how it ended (``state``, ``error``, …), its settings under the names of ``paceline train``'s flags,
    and its figures under the names that studies use. A figure that is called like a setting is ``result.NAME``.
    """
    pandas = _pandas()

    with closing(_open(store)) as connection:
        found = connection.execute("SELECT * FROM runs ORDER BY id").fetchall()
    rows = [_run(dict(row)) for row in found]
    if not archived:
        rows = [row for row in rows if not row["archived"]]
    about = ["run", *_ABOUT]
    settings = _names(rows, "settings")
    figures = {name: f"result.{name}" if name in settings else name for name in _names(rows, "figures")}
    table = [
        {
            **{name: row[name] for name in about},
            **{name: row["settings"].get(name) for name in settings},
            **{title: row["figures"].get(name) for name, title in figures.items()},
        }
        for row in rows
    ]
    columns = [*about, *settings, *figures.values()]
    frame = pandas.DataFrame(table, columns=columns).set_index("run")
    for column in ("started_s", "ended_s"):
        moments = pandas.to_datetime(frame.pop(column), unit="s", utc=True)
        frame.insert(_ABOUT.index(column), column[: -len("_s")], moments)
    return frame


def steps(store: Optional[PathLike], run: str) -> "pandas.DataFrame":
    """The steps of a run: a row per rank and step, with its times in nanoseconds, its samples and its loss.

    :param run: the run's id or name, the beginning of either, or ``last``.
    """
    return _table(store, run, "steps")


def evaluations(store: Optional[PathLike], run: str) -> "pandas.DataFrame":
    """The evaluations of a run on the test split: steps, samples, training clock in seconds, loss and accuracy."""
    return _table(store, run, "evaluations")


def _table(store: Optional[PathLike], run: str, table: str) -> "pandas.DataFrame":
    pandas = _pandas()

    with closing(_open(store)) as connection:
        number = _find(connection, run)
        order = {"steps": "rank, step"}.get(table, "step")
        rows = connection.execute(f"SELECT * FROM {table} WHERE run = ? ORDER BY {order}", (number,))
        names = [column[0] for column in rows.description]
        frame = pandas.DataFrame([tuple(row) for row in rows], columns=names)
    return frame.drop(columns="run")


def _pandas() -> Any:
    """pandas, which only the functions of this module need."""
    try:
        import pandas
    except ImportError:
        raise ImportError("reading the store needs pandas: pip install pandas") from None
    return pandas


def _path(store: Optional[PathLike]) -> Path:
    path = Path(store if store is not None else os.environ.get("PACELINE_STORE") or ".paceline")
    path = path / DATABASE if path.is_dir() else path
    if not path.is_file():
        raise StoreError(f"no runs are recorded in {path.parent if path.name == DATABASE else path}")
    return path


def _open(store: Optional[PathLike]) -> sqlite3.Connection:
    path = _path(store)
    address = path.resolve().as_uri()
    # Of a store in a folder that cannot be written to, and that nobody writes: SQLite would ask for a log beside it.
    quiet = not path.with_name(path.name + "-wal").exists() and not os.access(path.parent, os.W_OK)
    connection = sqlite3.connect(f"{address}?{'immutable=1' if quiet else 'mode=ro'}", uri=True, timeout=30)
    connection.row_factory = sqlite3.Row
    return connection


def _find(connection: sqlite3.Connection, text: str) -> int:
    """The number of the run that a text stands for, as ``paceline show`` finds it."""
    there = {row[1] for row in connection.execute("PRAGMA table_info(runs)")}
    name = "name" if "name" in there else "NULL"
    hidden = "coalesce(archived, 0), " if "archived" in there else ""
    if text == "last":
        found = connection.execute(f"SELECT id FROM runs ORDER BY {hidden}id DESC LIMIT 1").fetchone()
        if found is None:
            raise StoreError("no runs are recorded")
        return int(found[0])
    begins = f"substr(run, 1, length(?1)) = ?1 OR substr({name}, 1, length(?1)) = ?1"
    runs = connection.execute(f"SELECT id, run, {name} FROM runs WHERE {begins} ORDER BY id", (text,)).fetchall()
    for fitting in (
        [row for row in runs if row[1] == text],
        [row for row in runs if row[2] == text],
        runs,
    ):
        if len(fitting) == 1:
            return int(fitting[0][0])
        if fitting:
            raise StoreError(f"{text} could be {', '.join(row[1] for row in fitting[:5])}")
    raise StoreError(f"no run is called {text}")


def _run(row: Dict[str, Any]) -> Dict[str, Any]:
    """A run: its id, what is said about it, its settings and its figures."""
    told = {name: row.get(name) for name in _ABOUT}
    told["tags"] = _json(row.get("tags")) or []
    told["archived"] = bool(row.get("archived"))
    return {
        "run": row["run"],
        **told,
        "settings": _settings(_json(row.get("plan")) or {}),
        "figures": _figures(row),
    }


def _json(text: Optional[str]) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None


def _settings(plan: Dict[str, Any]) -> Dict[str, Any]:
    """A plan's settings, one level deep; what is no plain value is its JSON."""
    settings: Dict[str, Any] = {}
    for name, value in plan.items():
        if name in ("options", "work") and isinstance(value, dict):
            settings.update({part: _plain(inner) for part, inner in value.items()})
        elif name != "model-file":
            settings[name] = _plain(value)
    return settings


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (dict, list)) else value


def _figures(row: Dict[str, Any]) -> Dict[str, float]:
    """A result's numbers by their path, and what is summed over its ranks; or what is known so far."""
    result = _json(row.get("result"))
    if not isinstance(result, dict):
        known = {figure: row.get(column) for figure, column in _SO_FAR.items()}
        figures = {name: value for name, value in known.items() if value is not None}
        if figures.get("samples") and figures.get("seconds.train"):
            figures["samples_per_s"] = figures["samples"] / figures["seconds.train"]
        return figures
    figures = _numbers("", {name: value for name, value in result.items() if name not in ("plan", "schema")})
    ranks: List[Dict[str, Any]] = result.get("ranks") or []
    for name in ("cpu_s", "sent_bytes", "received_bytes"):
        figures[name] = sum(rank.get(name) or 0 for rank in ranks)
    if ranks:
        figures["rss_peak_bytes"] = max(rank.get("rss_peak_bytes") or 0 for rank in ranks)
    if figures.get("steps"):
        figures["step_s"] = figures.get("seconds.train", 0.0) / figures["steps"]
    return figures


def _numbers(prefix: str, value: Any) -> Dict[str, float]:
    if isinstance(value, bool):
        return {}
    if isinstance(value, (int, float)):
        return {prefix: value}
    if not isinstance(value, dict):
        return {}
    found: Dict[str, float] = {}
    for name, inner in value.items():
        found.update(_numbers(f"{prefix}.{name}" if prefix else name, inner))
    return found


def _names(rows: List[Dict[str, Any]], part: str) -> List[str]:
    """Every name that a part of the rows has, in the order of their appearance."""
    return list(dict.fromkeys(name for row in rows for name in row[part]))
