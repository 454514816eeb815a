"""Where a step's time goes, as far as the script can see it."""

from __future__ import annotations

import math
import time
from typing import Any, Dict, Tuple

from torch import Tensor

from .memory import SharedMemory

now = time.perf_counter_ns

_NAMES = ("data_ns", "forward_ns", "backward_ns", "staging_ns", "update_ns", "samples", "loss", "evaluated_ns")


class StepClock:
    """Gathers a step's account: nanoseconds, samples, loss.

    The update of a step comes after its account where gradients are exchanged: it stands in the next one.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self.mark = now()
        """Since when time belongs to nothing yet."""
        self.evaluates = False
        """Whether the model was evaluated since then."""
        self._restart()

    def _restart(self) -> None:
        self.data_ns = self.forward_ns = self.backward_ns = self.update_ns = self.evaluated_ns = 0
        self.samples = 0
        self.loss = math.nan

    def loop_waits(self, until: int) -> None:
        """Time of the loop until then: preparing a batch, or no training at all if the model was evaluated."""
        if self.evaluates:
            self.evaluated_ns += until - self.mark
        else:
            self.data_ns += until - self.mark
        self.evaluates = False
        self.mark = until

    def add_loss(self, root: Any, divisor: float) -> None:
        """Adds what backward began from, if it is one number: losses of one step are parts of a sum."""
        if not isinstance(root, Tensor):
            if not (isinstance(root, (tuple, list)) and len(root) == 1 and isinstance(root[0], Tensor)):
                return
            root = root[0]
        if root.numel() == 1:
            value = root.item() / divisor
            self.loss = value if self.loss != self.loss else self.loss + value

    def numbers(self) -> Tuple[int, int, int, int, int, int, float, int]:
        """The step's account as :meth:`paceline.attach.Attachment.account` takes it. Starts the next one."""
        memory = self._memory
        numbers = (
            self.data_ns,
            self.forward_ns,
            self.backward_ns,
            memory.copying_ns,
            self.update_ns,
            self.samples,
            self.loss,
            self.evaluated_ns,
        )
        memory.copying_ns = 0
        self._restart()
        return numbers

    def account(self) -> Dict[str, Any]:
        """The step's account in the words of :meth:`paceline.attach.Attachment.done`. Starts the next one."""
        return dict(zip(_NAMES, self.numbers()))
