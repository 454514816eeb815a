"""Paceline in Python: the recorded runs, and scripts as workers.

>>> import paceline
>>> runs = paceline.load(".paceline")          # doctest: +SKIP
>>> steps = paceline.steps(".paceline", "last")  # doctest: +SKIP

``paceline.torch`` makes a PyTorch script a worker; ``paceline.attach`` does it for any script. ``paceline.ray`` and
``paceline.spark`` train on the nodes of a Ray cluster or a Spark application.
"""

from .store import StoreError, evaluations, load, steps
from .version import __version__

__all__ = ["StoreError", "__version__", "evaluations", "load", "steps"]
