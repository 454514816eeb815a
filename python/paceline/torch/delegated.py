"""The same script under torch's own DistributedDataParallel, as a peer to compare with."""

from __future__ import annotations

from typing import Any, ContextManager

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..attach import AttachError, Attachment

# Updates between two questions whether all workers have heard that the run is over.
_AGREE_EVERY = 16


class _Forward(nn.Module):
    """Holds the model for DDP and computes its own method, so that the model's hooks run once."""

    def __init__(self, model: nn.Module, method: str) -> None:
        super().__init__()
        self.model = model
        self._compute = getattr(model, method)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._compute(*args, **kwargs)


class Delegated:
    """A process group, and DDP behind a method of the model: ``forward`` mostly."""

    def __init__(self, link: Attachment, model: nn.Module, method: str, find_unused_parameters: bool) -> None:
        assert link.delegated is not None
        self._link = link
        device = torch.device("cpu")
        if link.delegated["backend"] == "nccl":
            device = torch.device(link.device or "cuda")
            if not all(parameter.device.type == "cuda" for parameter in model.parameters()):
                raise AttachError("--strategy ddp-nccl needs the model on its GPU: model.to(pace.device()) before attach")
            torch.cuda.set_device(device)
        self._updates = 0
        torch.distributed.init_process_group(
            link.delegated["backend"],
            init_method=f"tcp://{link.delegated['address']}:{link.delegated['port']}",
            rank=link.rank,
            world_size=link.workers,
        )
        self._parallel = DistributedDataParallel(_Forward(model, method), find_unused_parameters=find_unused_parameters)
        self._flag = torch.zeros(1, device=device)
        self._heard = False
        self._inside = False
        self._computed = False
        self._method = method
        alone = getattr(model, method)

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._inside or not (model.training and torch.is_grad_enabled()):
                return alone(*args, **kwargs)
            self._inside = self._computed = True
            try:
                return self._parallel(*args, **kwargs)
            finally:
                self._inside = False

        setattr(model, method, forward)

    def no_sync(self) -> ContextManager[None]:
        return self._parallel.no_sync()

    def update_made(self) -> None:
        """Finds out, with all workers at the same update, whether somebody has heard that the run is over."""
        if not self._computed:
            raise AttachError(
                f"the model was trained without a call of its {self._method}(), which DistributedDataParallel needs: "
                "call model(…), not its parts"
            )
        self._updates += 1
        if self._updates % _AGREE_EVERY == 0 and not self._link.over:
            self._link.poll()
            self._flag.fill_(float(self._heard or self._link.over))
            torch.distributed.all_reduce(self._flag, op=torch.distributed.ReduceOp.MAX)
            self._link.over = bool(self._flag.item())

    def hold_back(self) -> None:
        """Nobody may stop alone: what this worker has heard counts once all have agreed on it."""
        link = self._link
        known = link.until is not None and link.step >= link.until
        if link.over and not known and not bool(self._flag.item()):
            self._heard = True
            link.over = False

    def leave(self) -> None:
        torch.distributed.destroy_process_group()
