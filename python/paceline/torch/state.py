"""What a script keeps in the run's checkpoints, and where it goes on."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

import torch

if TYPE_CHECKING:
    from .loader import ShardedLoader
    from .run import AttachedRun


def check(name: str, kept: Any) -> None:
    """Refuses an object whose state cannot be kept."""
    if not (hasattr(kept, "state_dict") and hasattr(kept, "load_state_dict")):
        raise TypeError(
            f"keep({name}=…): {type(kept).__name__} has no state_dict and load_state_dict, as a scheduler or a scaler has"
        )


class Checkpoint:
    """The state of the model, the optimizer, further objects and loaders, as bytes."""

    def __init__(self, run: "AttachedRun") -> None:
        self._run = run
        self._objects: Dict[str, Any] = {}
        self._loaders: List["ShardedLoader"] = []
        self._scaler: Any = None
        self._restored: Dict[str, Any] = {}
        self.epoch = 0
        self.first_epoch = 0

    def keep(self, name: str, kept: Any) -> None:
        self._objects[name] = kept
        if hasattr(kept, "get_scale") and kept.is_enabled():
            self._scaler = kept
        if name in self._restored.get("objects", {}):
            kept.load_state_dict(self._restored["objects"][name])
            self.restore_optimizer()  # a scheduler that was made after `attach` has set its first learning rate

    def join(self, loader: "ShardedLoader") -> Tuple[int, int]:
        """The position from which a loader goes on."""
        positions = self._restored.get("loaders", [])
        self._loaders.append(loader)
        number = len(self._loaders) - 1
        epoch, batches = positions[number] if number < len(positions) else (0, 0)
        return epoch, batches

    def epoch_begins(self, epoch: int) -> None:
        self.epoch = epoch
        for loader in self._loaders:
            loader.next_epoch()

    def loss_scale(self) -> float:
        """What a kept GradScaler multiplies losses by."""
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())

    def to_bytes(self) -> bytes:
        """Everything, by ``torch.save``."""
        optimizer = self._run.optimizer
        written = io.BytesIO()
        torch.save(
            {
                "model": self._run.model.state_dict(),
                "optimizer": None if optimizer is None else optimizer.state_dict(),
                "objects": {name: kept.state_dict() for name, kept in self._objects.items()},
                "loaders": [loader.position for loader in self._loaders],
                "epoch": self.epoch,
                "random": torch.get_rng_state(),
                "rank": self._run.rank,
            },
            written,
        )
        return written.getvalue()

    def restore(self, kept: bytes) -> None:
        """Restores model and optimizer; the others when they are known."""
        if not kept:
            return
        # What this very script has written: whoever can change it can change the script.
        self._restored = torch.load(io.BytesIO(kept), map_location="cpu", weights_only=False)
        self._run.model.load_state_dict(self._restored["model"])
        self.restore_optimizer()
        self.epoch = self.first_epoch = self._restored["epoch"]
        # Another worker's would draw the same numbers as that one does.
        if self._restored.get("rank", self._run.rank) == self._run.rank:
            torch.set_rng_state(self._restored["random"])

    def restore_optimizer(self) -> None:
        """Restores the optimizer, if there is one yet and something was kept of it."""
        saved = self._restored.get("optimizer")
        if self._run.optimizer is not None and saved is not None:
            self._run.optimizer.load_state_dict(saved)
