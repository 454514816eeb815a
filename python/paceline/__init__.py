"""Paceline's runs in Python.

>>> import paceline
>>> runs = paceline.load(".paceline")          # doctest: +SKIP
>>> steps = paceline.steps(".paceline", "last")  # doctest: +SKIP
"""

from .store import StoreError, evaluations, load, steps

__all__ = ["StoreError", "evaluations", "load", "steps"]
