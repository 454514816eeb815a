"""Runs that engines in Python start: what each process is told, and what comes of it. Ray and Spark themselves are tried
by ``cargo xtask accept engines``."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict, List

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import paceline.ray
import paceline.spark
from paceline.job import JobError, new_job, result_of, run_task

# Tells what it was told; process 2 fails.
PROGRAM = """#!/bin/sh
echo "waiting for others" >&2
[ "$RANK" != 2 ] || { echo "error: lost" >&2; exit 4; }
[ "$RANK" != 0 ] || echo "{\\"type\\": \\"progress\\"}"
[ "$RANK" != 0 ] || echo "{\\"words\\": \\"$*\\", \\"job\\": \\"$TORCHELASTIC_RUN_ID\\", \\"at\\": \\"$MASTER_ADDR\\", \\"of\\": $WORLD_SIZE}"
"""


class JobTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.program = os.path.join(folder.name, "paceline")
        Path(self.program).write_text(PROGRAM)
        os.chmod(self.program, 0o755)

    def ends(self, ranks: int) -> List[Dict[str, Any]]:
        job = new_job()
        return [run_task(self.program, ["--steps", "3"], "/s", job, rank, ranks, "10.0.0.1") for rank in range(ranks)]

    def test_the_result_is_the_last_line_of_process_0(self) -> None:
        result = result_of(self.ends(2))
        self.assertEqual(result["words"], "train --json --engine torchrun --store /s --steps 3")
        self.assertEqual((result["at"], result["of"], len(result["job"])), ("10.0.0.1", 2, 32))

    def test_a_process_that_fails_is_named_with_what_it_said(self) -> None:
        ends = json.loads(json.dumps(self.ends(3)))  # as it travels between machines
        with self.assertRaisesRegex(JobError, "process 2 ended with exit status 4:\n(.|\n)*error: lost"):
            result_of(ends)

    def test_every_job_has_a_name_of_its_own(self) -> None:
        self.assertNotEqual(new_job(), new_job())

    def test_nothing_of_an_engine_is_imported_before_it_is_used(self) -> None:
        self.assertTrue(callable(paceline.ray.train) and callable(paceline.spark.train))
        self.assertNotIn("pyspark", sys.modules)


class Conf:
    def __init__(self, **settings: str) -> None:
        self.settings = settings

    def get(self, name: str, default: str) -> str:
        return self.settings.get(name.replace(".", "_"), default)


class SparkTest(unittest.TestCase):
    def test_dynamic_allocation_is_refused_with_the_reason(self) -> None:
        class Context:
            def getConf(self) -> Conf:
                return Conf(spark_dynamicAllocation_enabled="True")

        class Spark:
            sparkContext = Context()

        with self.assertRaisesRegex(ValueError, "dynamicAllocation.*all its executors at once"):
            paceline.spark.train(Spark(), tasks=3, store="/nonexistent")


if __name__ == "__main__":
    unittest.main()
