"""Makes a PyTorch script a worker of Paceline::

    import paceline.torch as pace

    run = pace.attach(model, optimizer)      # nothing happens when the script is started alone
    loader = run.shard(loader)               # this worker's share
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()                      # gradient strategies: .grad is the mean from here on
        optimizer.step()                     # weight strategies exchange here
    run.report(loss=loss, accuracy=accuracy)

Start it by ``paceline train --script train.py --workers 4``. ``docs/pytorch.md`` tells the whole story.

Layout: ``run`` (what the script sees and where its loop is watched), ``exchange`` (when numbers travel), ``memory``
(copies into and out of the shared memory), ``staging`` (copies beside what a GPU computes), ``loader`` (shares of the data), ``state`` (checkpoints), ``optimizer``
(settings for servers), ``delegated`` (torch's own DDP), ``huggingface`` and ``lightning`` (callbacks).
"""

from __future__ import annotations

import os as _os
import sys as _sys
from typing import Any, Optional

try:
    import torch as _torch
except ImportError:
    raise ImportError("paceline.torch needs PyTorch 2.1 or newer: pip install torch") from None
if not hasattr(_torch.Tensor, "register_post_accumulate_grad_hook"):
    raise ImportError(f"paceline.torch needs PyTorch 2.1 or newer, this is {_torch.__version__}")

from .. import attach as _attach
from . import staging as _staging
from .loader import share_of as _share_of
from .memory import trained_parameters as _trained_parameters
from .optimizer import check_parameters as _check_parameters
from .optimizer import describe as _describe
from .run import AttachedRun as _AttachedRun
from .run import Run

__all__ = ["LightningCallback", "Run", "TrainerCallback", "attach", "device", "shard"]


def attach(
    model: _torch.nn.Module,
    optimizer: Optional[_torch.optim.Optimizer] = None,
    *,
    overlap: bool = True,
    find_unused_parameters: bool = False,
) -> Run:
    """Attaches the script to the rank that started it: from here on the model starts and learns as the run's plan says.

    Call it once the model is where it is trained and the optimizer is made. All workers start with rank 0's parameters.

    :param optimizer: the one optimizer of the model. Left out, its first step shows it; ``--apply server`` needs it here.
    :param overlap: whether gradients travel while backward still computes others.
    :param find_unused_parameters: for the delegated strategies: DDP's own parameter of this name.
    """
    return attach_method(
        model, optimizer, "forward", overlap=overlap, find_unused_parameters=find_unused_parameters
    )


def attach_method(
    model: _torch.nn.Module,
    optimizer: Optional[_torch.optim.Optimizer],
    method: str,
    *,
    overlap: bool = True,
    find_unused_parameters: bool = False,
) -> Run:
    """:func:`attach` for frameworks that call another method of the model than ``forward`` in training."""
    if not _attach.started_by_rank():
        return Run(model, optimizer)
    named = _trained_parameters(model)
    if optimizer is not None:
        _check_parameters(optimizer, named)
    link = _attach.attach(
        [(name, tuple(parameter.shape)) for name, parameter in named],
        framework=f"torch {_torch.__version__}",
        optimizer=_describe(optimizer, named),
        # What comes back travels to a device while the rest is exchanged; memory needs no second journey.
        arrivals=_staging.device_of([parameter for _, parameter in named]) is not None,
    )
    assert link is not None
    _check_device(link.device)
    if link.device is not None and not any(parameter.is_cuda for _, parameter in named):
        told = "paceline: --gpus gives this worker a GPU, but the model is on the CPU: model.to(pace.device())"
        print(told, file=_sys.stderr)
    return _AttachedRun(
        link,
        model,
        optimizer,
        named,
        overlap=overlap,
        method=method,
        find_unused_parameters=find_unused_parameters,
    )


def device() -> _torch.device:
    """Where this worker computes: the GPU that ``--gpus`` gives it; otherwise a GPU if there is one, else the CPU."""
    given = _os.environ.get("PACELINE_DEVICE") if _attach.started_by_rank() else None
    _check_device(given)
    return _torch.device(given or ("cuda" if _torch.cuda.is_available() else "cpu"))


def _check_device(given: Optional[str]) -> None:
    """Refuses to compute elsewhere than on the GPU that was given."""
    if given is not None and not _torch.cuda.is_available():
        raise _attach.AttachError(
            f"--gpus gives this worker the GPU {_os.environ.get('PACELINE_GPU', '?')}, but torch {_torch.__version__} finds no "
            "CUDA: install a PyTorch with CUDA, or leave --gpus out to compute on the CPU"
        )


def shard(dataset: Any) -> Any:
    """This worker's share of a dataset, before (or without) a call of :func:`attach`: every p-th sample.

    For trainers that make their own loaders. :meth:`Run.shard` is better where the script makes them.
    """
    _, workers = _attach.rank_and_workers()
    return dataset if not _attach.started_by_rank() else _share_of(dataset, None, workers)


def __getattr__(name: str) -> Any:
    # Their libraries are big: only who uses them imports them.
    if name == "TrainerCallback":
        from .huggingface import TrainerCallback

        return TrainerCallback
    if name == "LightningCallback":
        from .lightning import LightningCallback

        return LightningCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
