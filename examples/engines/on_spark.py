"""Trains on three executors of a local Spark cluster: on_spark.py PROGRAM STORE [FLAG...]"""

import json
import os
import sys

import paceline.spark
from pyspark.sql import SparkSession

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
builder = SparkSession.builder.master("local-cluster[3,1,1024]").config("spark.ui.enabled", "false")
# Executors have an environment of their own.
spark = builder.config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", "")).getOrCreate()
program, store, *flags = sys.argv[1:]
result = paceline.spark.train(spark, *flags, tasks=3, store=store, program=program)
print(json.dumps(result))
spark.stop()
