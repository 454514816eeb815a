"""``paceline train`` on the executors of a Spark application: a barrier stage, one process per task.

>>> import paceline.spark                                                                   # doctest: +SKIP
>>> result = paceline.spark.train(spark, "--epochs", "20", tasks=3, store="/shared/store")  # doctest: +SKIP
>>> result["final_accuracy"]                                                                # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any, Dict, Iterator

from .job import JobError, new_job, result_of, run_task

__all__ = ["JobError", "train"]


def train(spark: Any, *flags: str, tasks: int, store: str, program: str = "paceline") -> Dict[str, Any]:
    """Trains with ``tasks`` processes, one per task of a barrier stage, and returns the result, as ``paceline train
    --json`` prints it.

    ``flags`` are those of ``paceline train``. ``store`` is a folder that all executors share: the run is recorded
    there, and the processes meet there. Every executor needs this package and ``program``, e.g. from the wheel.
    """
    context = spark.sparkContext
    if context.getConf().get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        raise ValueError(
            "spark.dynamicAllocation.enabled is true: a barrier stage needs all its executors at once, and Spark "
            "refuses it then; set it to false and ask for executors with spark.executor.instances"
        )
    job = new_job()

    def partition(_: Iterator[int]) -> Iterator[Dict[str, Any]]:
        from pyspark import BarrierTaskContext

        task = BarrierTaskContext.get()
        leader = task.getTaskInfos()[0].address.rsplit(":", 1)[0]
        yield run_task(program, flags, store, job, task.partitionId(), tasks, leader)

    return result_of(context.parallelize(range(tasks), tasks).barrier().mapPartitions(partition).collect())
