"""Runs a script that says nothing of Paceline as a worker: ``paceline train --script train.py --auto``. An experiment.

The script's loaders, its optimizer and its model are found while it runs: loaders that shuffle are shared among the workers
when they are made, and the model is attached at its first forward pass in training, before it computes. What is not understood
is refused, and nothing is guessed.
"""

from __future__ import annotations

import functools
import os
import runpy
import sys
from types import SimpleNamespace
from typing import Any, Callable, Iterator, List, Optional

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from .. import attach as _attach
from ..attach import AttachError
from . import attach
from .clock import now
from .loader import SampleShare, samples_in
from .run import AttachedRun, Run

_EMPTY_EPOCHS = 1000

# Trainers with loops, loaders and optimizers of their own: they have callbacks.
_TRAINERS = {"transformers.trainer": "pace.TrainerCallback()", "lightning.pytorch": "pace.LightningCallback()"}


class Auto:
    """What is known of the script so far."""

    def __init__(self) -> None:
        rank, workers = _attach.rank_and_workers()
        self._place = SimpleNamespace(rank=rank, workers=workers, seed=int(os.environ.get("PACELINE_SEED", "0")))
        self.run: Optional[Run] = None
        self._optimizers: List[torch.optim.Optimizer] = []
        self._last_loader: Optional["DataLoader[Any]"] = None
        self._last_samples = 0
        self._computed = False
        self._empty = 0

    def watch(self) -> None:
        """From here on loaders, optimizers, models and backward passes are seen."""
        _around(DataLoader, "__init__", self._loader_made)
        original_iter = DataLoader.__iter__
        DataLoader.__iter__ = lambda loader: self._batches(loader, original_iter)  # type: ignore[method-assign]
        _around(torch.optim.Optimizer, "__init__", self._optimizer_made)
        register_module_forward_pre_hook(self._forward_begins)
        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> None:
            if self.run is None and self._optimizers:
                raise AttachError(
                    "--auto: no single module holds all that the optimizer trains: put the modules into one "
                    "nn.ModuleList that is called as a whole, or attach it yourself (docs/pytorch.md)"
                )
            original(*args, **kwargs)

        torch.autograd.backward = backward
        torch.distributed.init_process_group = _refuse_process_group

    def check_attached(self) -> None:
        """Refuses a script that has ended and never trained as it was expected to."""
        if self.run is not None:
            return
        if not self._optimizers:
            raise AttachError("--auto: the script has ended and made no torch.optim.Optimizer: there was nothing to train")
        if not self._computed:
            raise AttachError("--auto: the script has ended without a forward pass of a module in training")
        raise AttachError("--auto: the script has ended and never trained the module of its optimizer")

    # Loaders.

    def _loader_made(self, loader: "DataLoader[Any]") -> None:
        """Gives this worker its share, if the loader shuffles: others are for evaluation, and stay whole."""
        if not self._shares(loader):
            return
        part = SampleShare(loader.sampler, self._place, True)  # type: ignore[arg-type]
        attributes = vars(loader)
        attributes["sampler"] = part
        if loader.batch_sampler is not None:
            assert loader.batch_size is not None
            attributes["batch_sampler"] = BatchSampler(part, loader.batch_size, loader.drop_last)
        attributes["_paceline_part"] = part

    def _shares(self, loader: "DataLoader[Any]") -> bool:
        own_batches = type(loader.batch_sampler) not in (BatchSampler, type(None))
        random = type(getattr(loader, "sampler", None)) is RandomSampler
        return random and not own_batches and not isinstance(loader.dataset, IterableDataset)

    def _batches(self, loader: "DataLoader[Any]", original: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        part = vars(loader).get("_paceline_part")
        if part is None or not torch.is_grad_enabled():
            return self._noted(loader, original(loader))
        return self._training_batches(loader, part, original)

    def _noted(self, loader: "DataLoader[Any]", batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self._last_loader, self._last_samples = loader, samples_in(batch)
            yield batch

    def _training_batches(self, loader: "DataLoader[Any]", part: Any, original: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        if self._over():
            self._empty += 1
            if self._empty > _EMPTY_EPOCHS:
                print("paceline: the run is over, and the script's loop does not end: ended here", file=sys.stderr)
                raise SystemExit(0)
            return
        asked_ns = now()
        for batch in self._noted(loader, original(loader)):
            if isinstance(self.run, AttachedRun):
                self.run.batch_begins(asked_ns, self._last_samples)
            yield batch
            if self._over():
                return
            asked_ns = now()
        part.epoch += 1
        if isinstance(self.run, AttachedRun):
            self.run.loop_ends()

    def _over(self) -> bool:
        if not isinstance(self.run, AttachedRun):
            return False
        self.run.between_steps()
        return self.run.over

    # The model and its optimizer.

    def _optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers.append(optimizer)

    def _forward_begins(self, module: nn.Module, _: Any) -> None:
        if self.run is not None or not (module.training and torch.is_grad_enabled()):
            return
        self._computed = True
        if not self._optimizers:
            return
        trained = {id(p) for group in self._optimizers[-1].param_groups for p in group["params"]}
        if not trained <= {id(parameter) for parameter in module.parameters()}:
            return
        self._check()
        self.run = attach(module, self._optimizers[-1])
        if isinstance(self.run, AttachedRun):
            self.run.counts_samples()
            # The batch that is computed now was drawn before.
            self.run.batch_begins(now(), self._last_samples)

    def _check(self) -> None:
        for name, callback in _TRAINERS.items():
            if name in sys.modules:
                raise AttachError(f"--auto: {name} has a loop of its own: leave --auto out and give it {callback}")
        if len(self._optimizers) > 1:
            raise AttachError(f"--auto: the script has {len(self._optimizers)} optimizers: which of them trains the model?")
        if type(self._optimizers[0]).__name__ == "LBFGS":
            raise AttachError("--auto: LBFGS computes several backward passes for one step: attach it yourself")
        if self._place.workers == 1:
            return
        loader = self._last_loader
        if loader is None:
            raise AttachError("--auto: no DataLoader hands over the batches: all workers would train on the same ones")
        if "_paceline_part" not in vars(loader):
            raise AttachError(
                "--auto: the loader that trains is not one with shuffle=True and torch's own samplers, so it is not known "
                "how to share it: use run.shard(loader) (docs/pytorch.md)"
            )


def _around(owner: type, name: str, made: Callable[[Any], None]) -> None:
    """Calls ``made`` with an object whose outermost constructor has ended."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        made(self)

    setattr(owner, name, construct)


def _refuse_process_group(*args: Any, **kwargs: Any) -> None:
    raise AttachError("--auto: the script makes a process group of its own: leave that to --strategy, or --auto out")


def main() -> None:
    """``python -m paceline.torch.auto SCRIPT ARGS``."""
    if not _attach.started_by_rank():
        raise SystemExit("paceline.torch.auto is started by `paceline train --script FILE --auto`")
    sys.argv = sys.argv[1:]
    script = os.path.abspath(sys.argv[0])
    sys.path[0] = os.path.dirname(script)
    auto = Auto()
    auto.watch()
    runpy.run_path(script, run_name="__main__")
    auto.check_attached()


if __name__ == "__main__":
    main()
