"""One process of a run that an engine in Python starts: what ``paceline.ray`` and ``paceline.spark`` have in common."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import uuid
from typing import Any, Dict, List, Sequence

__all__ = ["JobError", "new_job", "run_task", "result_of"]


class JobError(RuntimeError):
    """A process of the run ended with an error; the message has what it said."""


def new_job() -> str:
    """A name that no other job has: the processes of a run find each other by it."""
    return uuid.uuid4().hex


def run_task(
    program: str, flags: Sequence[str], store: str, job: str, rank: int, size: int, leader: str
) -> Dict[str, Any]:
    """Runs ``paceline train`` as one of ``size`` processes, to its end.

    Process 0 leads at ``leader``, this machine's address there. It leaves the key in ``store``, a folder that all
    machines share, in a file for its user only. When this Python process ends, the run does.
    """
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": leader,
        "MASTER_PORT": "1",  # part of the job's name; the leader takes any port that is free
        "TORCHELASTIC_RUN_ID": job,
    }
    command = [program, "train", "--json", "--engine", "torchrun", "--store", store, *flags]
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        ) as process:
            assert process.stdout is not None
            last = b""
            for line in process.stdout:
                last = line
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()
    return {"rank": rank, "code": process.returncode, "said": said, "last": last.decode() if rank == 0 else ""}


def result_of(ends: List[Dict[str, Any]]) -> Dict[str, Any]:
    """The result of the run; :class:`JobError` names the processes that failed."""
    failed = [end for end in ends if end["code"] != 0]
    if failed:
        texts = [f"process {end['rank']} ended with exit status {end['code']}:\n{end['said']}" for end in failed]
        raise JobError("\n".join(texts))
    return json.loads(next(end["last"] for end in ends if end["rank"] == 0))
