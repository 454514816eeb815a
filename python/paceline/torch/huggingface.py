"""A callback for the Trainer of Hugging Face transformers.

>>> trainer = Trainer(                                     # doctest: +SKIP
...     model=model,
...     args=arguments,
...     train_dataset=pace.shard(train_set),               # this worker's share
...     eval_dataset=test_set,
...     callbacks=[pace.TrainerCallback()],
... )
"""

from __future__ import annotations

from typing import Any, Dict, Optional

import transformers

from .run import Run


class TrainerCallback(transformers.TrainerCallback):
    """Attaches the model and the optimizer of a Trainer, and reports what it evaluates.

    ``eval_loss`` and ``eval_accuracy`` become the run's loss and accuracy; without an evaluation the mean training loss
    does. The data is shared by ``train_dataset=pace.shard(dataset)``. Gradients that are accumulated
    (``gradient_accumulation_steps``) are exchanged once.
    """

    def __init__(self) -> None:
        self.run: Optional[Run] = None
        self._evaluated = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **told: Any) -> None:
        from . import attach
        from .run import AttachedRun

        optimizer = told["optimizer"]
        # Accelerate wraps the optimizer; the one inside makes the steps.
        run = self.run = attach(told["model"], getattr(optimizer, "optimizer", optimizer))
        if told.get("lr_scheduler") is not None:
            run.keep(scheduler=told["lr_scheduler"])
        if isinstance(run, AttachedRun):
            from accelerate.state import GradientState

            run.accumulating = lambda: not GradientState().sync_gradients

    def on_step_end(self, args: Any, state: Any, control: Any, **told: Any) -> None:
        if self.run is not None and self.run.over:
            control.should_training_stop = True

    def on_evaluate(self, args: Any, state: Any, control: Any, **told: Any) -> None:
        self._evaluated = True
        names = {"eval_loss": "loss", "eval_accuracy": "accuracy"}
        self._report({names.get(name, name): value for name, value in told["metrics"].items() if name != "epoch"})

    def on_log(self, args: Any, state: Any, control: Any, logs: Optional[Dict[str, Any]] = None, **told: Any) -> None:
        if logs and "train_loss" in logs and not self._evaluated:
            self._report({"loss": logs["train_loss"]})

    def _report(self, values: Dict[str, Any]) -> None:
        numbers = {name: value for name, value in values.items() if isinstance(value, (int, float))}
        if self.run is not None and numbers:
            self.run.report(**numbers)
