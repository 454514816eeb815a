"""A device that copies late: what :class:`paceline.torch.staging.Staging` asks of it is done when its events are looked at."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, List


class _Event:
    def __init__(self, device: "FakeDevice", operations: int) -> None:
        self._device = device
        self._operations = operations
        self._looks = device.patience

    def query(self) -> bool:
        """Done when it was looked at often enough."""
        self._looks -= 1
        if self._looks <= 0:
            self.synchronize()
        return self._device.done >= self._operations

    def synchronize(self) -> None:
        self._device.work(self._operations)


class FakeDevice:
    """Copies are done in the order in which they were asked for, ``patience`` looks at an event after they were."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.asked: List[str] = []
        self.done = 0
        self._operations: List[Callable[[], Any]] = []

    def work(self, until: int) -> None:
        while self.done < until:
            self._operations[self.done]()
            self.done += 1

    def takes(self, tensor: Any) -> bool:
        return True

    def register(self, numbers: Any) -> None:
        pass

    def unregister(self) -> None:
        self.work(len(self._operations))

    def copying(self) -> ContextManager[None]:
        return contextlib.nullcontext()

    def computed(self) -> _Event:
        self.asked.append("computed")
        return _Event(self, 0)

    def copied(self) -> _Event:
        self.asked.append("copied")
        return _Event(self, len(self._operations))

    def copy_after(self, event: _Event) -> None:
        self.asked.append("copy after")

    def compute_after(self, event: _Event) -> None:
        """What computes here cannot wait beside: it does so at once."""
        self.asked.append("compute after")
        event.synchronize()

    def returning(self) -> ContextManager[None]:
        return contextlib.nullcontext()

    def returned(self) -> _Event:
        self.asked.append("returned")
        return _Event(self, len(self._operations))

    def return_after(self, event: _Event) -> None:
        self.asked.append("return after")

    def buffer(self, length: int) -> Any:
        import torch

        return torch.zeros(length)

    def copy(self, to: Any, of: Any) -> None:
        self.asked.append("copy")
        self._operations.append(lambda: to.copy_(of))
