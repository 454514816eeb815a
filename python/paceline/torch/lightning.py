"""A callback for Lightning's Trainer.

>>> loader = DataLoader(pace.shard(train_set), batch_size=64, shuffle=True)      # doctest: +SKIP
>>> trainer = L.Trainer(max_epochs=3, callbacks=[pace.LightningCallback()])      # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from .clock import now
from .loader import samples_in
from .run import AttachedRun, Run

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback


class LightningCallback(Callback):
    """Attaches a LightningModule and its optimizer, and reports what it logs while it validates.

    The data is shared by ``DataLoader(pace.shard(dataset), …)``. Accumulated gradients are exchanged once.

    :param loss: the logged name that becomes the run's loss.
    :param accuracy: the logged name that becomes the run's accuracy.
    """

    def __init__(self, loss: str = "val_loss", accuracy: str = "val_acc") -> None:
        super().__init__()
        self.run: Optional[Run] = None
        self._names = {loss: "loss", accuracy: "accuracy"}
        self._asked_ns = now()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        from . import attach_method

        if len(trainer.optimizers) != 1:
            raise ValueError(f"a run has one optimizer, configure_optimizers gives {len(trainer.optimizers)}")
        # Lightning calls `training_step`; whether it calls `forward` is up to the module.
        run = self.run = attach_method(pl_module, trainer.optimizers[0], "training_step")
        for number, configured in enumerate(trainer.lr_scheduler_configs):
            run.keep(**{f"scheduler{number}": configured.scheduler})
        if isinstance(run, AttachedRun):
            run.counts_samples()
            run.accumulating = trainer.fit_loop.epoch_loop._should_accumulate
        self._asked_ns = now()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if isinstance(self.run, AttachedRun) and not self.run.over:
            self.run.between_steps()
            self.run.batch_begins(self._asked_ns, samples_in(batch))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.run is not None and self.run.over:
            trainer.should_stop = True
        self._asked_ns = now()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self.run is None or trainer.sanity_checking:
            return
        metrics = trainer.callback_metrics
        self.run.report(**{self._names.get(name, name): value for name, value in metrics.items()})
