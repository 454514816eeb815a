"""Where a step's time goes, as far as the script can see it."""

from __future__ import annotations

import math
import time
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .memory import SharedMemory

now = time.perf_counter_ns

_NAMES = ("data_ns", "forward_ns", "backward_ns", "staging_ns", "update_ns", "samples", "loss", "evaluated_ns")


# Losses of one step that are under way at most.
_COMING = 16


class StepClock:
    """Gathers a step's account: nanoseconds, samples, loss.

    The update of a step comes after its account where gradients are exchanged: it stands in the next one.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        # Losses that a GPU is still computing, and where they arrive.
        self._coming: List[Tuple[Any, Tensor, float]] = []
        self._places: Optional[Tensor] = None
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
        if root.numel() != 1:
            return
        if not root.is_cuda:
            self._count_loss(root.item() / divisor)
            return
        # Reading it now would wait for all that the GPU was asked for, and let it wait afterwards.
        if len(self._coming) == _COMING:
            self._read_losses()
        if self._places is None:
            self._places = torch.empty(_COMING, dtype=torch.float32, pin_memory=True)
        place = self._places[len(self._coming)]
        place.copy_(root.detach(), non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(root.device))
        self._coming.append((event, place, divisor))

    def _count_loss(self, value: float) -> None:
        self.loss = value if self.loss != self.loss else self.loss + value

    def _read_losses(self) -> None:
        # Where nothing is exchanged, this is what keeps the script at most a step ahead of the GPU: time of computing.
        begun = now()
        for event, place, divisor in self._coming:
            event.synchronize()
            self._count_loss(place.item() / divisor)
        self._coming.clear()
        self.backward_ns += now() - begun

    def numbers(self) -> Tuple[int, int, int, int, int, int, float, int]:
        """The step's account as :meth:`paceline.attach.Attachment.account` takes it. Starts the next one."""
        memory = self._memory
        if self._coming:
            self._read_losses()
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
