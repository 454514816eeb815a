"""Trains on a local Ray cluster of three nodes: on_ray.py PROGRAM STORE [FLAG...]"""

import json
import sys

import paceline.ray
import ray
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
for _ in range(2):
    cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, log_to_driver=False)
program, store, *flags = sys.argv[1:]
result = paceline.ray.train(*flags, nodes=3, store=store, program=program, strategy="STRICT_SPREAD")
print(json.dumps(result))
ray.shutdown()
cluster.shutdown()
