"""``paceline train`` on the nodes of a Ray cluster: a placement group, one process per bundle.

>>> import ray, paceline.ray                                                        # doctest: +SKIP
>>> ray.init("auto")                                                                # doctest: +SKIP
>>> result = paceline.ray.train("--epochs", "20", nodes=3, store="/shared/store")   # doctest: +SKIP
>>> result["final_accuracy"]                                                        # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any, Dict, Optional

from .job import JobError, new_job, result_of, run_task

__all__ = ["JobError", "train"]


def train(
    *flags: str,
    nodes: int,
    store: str,
    program: str = "paceline",
    cpus: float = 1,
    gpus: float = 0,
    strategy: str = "SPREAD",
    timeout_s: Optional[float] = None,
) -> Dict[str, Any]:
    """Trains on ``nodes`` nodes and returns the result, as ``paceline train --json`` prints it.

    ``flags`` are those of ``paceline train``. ``store`` is a folder that all nodes share: the run is recorded there,
    and the processes meet there. ``cpus`` and ``gpus`` are what each process reserves; ``strategy`` places them
    (``STRICT_SPREAD`` for one per node). ``timeout_s`` bounds the wait for the placement. Every node needs this package
    and ``program``, e.g. from the wheel.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundle = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    group = placement_group([bundle] * nodes, strategy=strategy)
    try:
        ray.get(group.ready(), timeout=timeout_s)

        def on(function: Any, rank: int) -> Any:
            place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
            options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": 0, "scheduling_strategy": place}
            return ray.remote(function).options(**options)

        leader = ray.get(on(ray.util.get_node_ip_address, 0).remote())
        job = new_job()
        tasks = [on(run_task, rank).remote(program, flags, store, job, rank, nodes, leader) for rank in range(nodes)]
        return result_of(ray.get(tasks))
    finally:
        remove_placement_group(group)
