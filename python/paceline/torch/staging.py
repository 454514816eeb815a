"""Copies between a device and the shared memory, beside what the device computes.

Gradients are copied on a stream of their own once they are computed, and are announced when they have arrived: a ticket
is never sent before its copy's event. What comes back travels on the same stream.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any, ContextManager, Deque, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ..attach import AttachError


class CudaDevice:
    """A GPU with a stream for copies. What :class:`Staging` needs of a device is in these methods."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)
        self._registered: List[Tensor] = []

    def takes(self, tensor: Tensor) -> bool:
        """Whether a tensor lies on this device."""
        return tensor.device == self._device

    def register(self, numbers: Tensor) -> None:
        """Pins shared memory, so that copies need no detour. Where that is refused, copies are right but slow."""
        code = torch.cuda.cudart().cudaHostRegister(numbers.data_ptr(), 4 * numbers.numel(), 0)
        if int(code) == 0:
            self._registered.append(numbers)
        else:
            print(
                f"paceline: CUDA did not register {4 * numbers.numel()} bytes of shared memory (error {int(code)}): "
                "gradients take the slow way; is there a limit of locked memory (ulimit -l)?",
                file=sys.stderr,
            )

    def unregister(self) -> None:
        while self._registered:
            torch.cuda.cudart().cudaHostUnregister(self._registered.pop().data_ptr())

    def copying(self) -> ContextManager[Any]:
        """Within it, what is computed is computed on the stream of copies."""
        return torch.cuda.stream(self._stream)  # type: ignore[no-any-return,unused-ignore]

    def computed(self) -> Any:
        """An event: all that was asked for so far on the computing stream is done."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def copied(self) -> Any:
        """The same of the stream of copies."""
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def copy_after(self, event: Any) -> None:
        """Further copies wait for an event, on the device."""
        self._stream.wait_event(event)

    def compute_after(self, event: Any) -> None:
        """Further computations wait for an event, on the device."""
        torch.cuda.current_stream(self._device).wait_event(event)

    def copy(self, to: Tensor, of: Tensor) -> None:
        """Copies; it need not be done when this returns. One of both lies in the shared memory."""
        to.copy_(of, non_blocking=True)

    def scaled(self, gradient: Tensor, scale: float) -> Tensor:
        """A gradient times a factor in ``float32``, on the device."""
        return gradient.to(torch.float32) * scale

    def received(self, numbers: Tensor, like: Tensor) -> Tensor:
        """Numbers of the shared memory on the device, in ``float32``."""
        arrived = torch.empty(like.shape, dtype=torch.float32, device=like.device)
        self.copy(arrived, numbers)
        return arrived

    def keep(self, tensor: Tensor) -> None:
        """The memory of a tensor is not given to others before the copies that were asked for are done."""
        tensor.record_stream(self._stream)


def device_of(parameters: Sequence[Tensor]) -> Optional[CudaDevice]:
    """The GPU of a model, if its parameters lie on one; several are refused."""
    found = sorted({str(parameter.device) for parameter in parameters if parameter.is_cuda})
    if len(found) > 1:
        raise AttachError(f"the model lies on several GPUs ({', '.join(found)}): each worker has one; see --gpus")
    return CudaDevice(torch.device(found[0])) if found else None


class Staging:
    """Copies under way, in their order."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self._under_way: Deque[Tuple[Any, List[int]]] = deque()

    @property
    def busy(self) -> bool:
        """Whether copies are under way."""
        return bool(self._under_way)

    def put(self, numbers: Sequence[int], copies: Sequence[Tuple[Tensor, Tensor]], scale: float) -> None:
        """Gradients times ``scale`` → shared memory (pairs of place and gradient), once they are computed."""
        device = self.device
        device.copy_after(device.computed())
        with device.copying():
            for place, gradient in copies:
                device.copy(place, device.scaled(gradient, scale))
                device.keep(gradient)
        self._under_way.append((device.copied(), list(numbers)))

    def arrived(self) -> List[int]:
        """Tensors whose numbers have arrived since this was last asked for, without waiting."""
        numbers: List[int] = []
        while self._under_way and self._under_way[0][0].query():
            numbers += self._under_way.popleft()[1]
        return numbers

    def wait(self) -> List[int]:
        """The same of all that is under way: waits for it."""
        numbers: List[int] = []
        while self._under_way:
            event, own = self._under_way.popleft()
            event.synchronize()
            numbers += own
        return numbers

    def take(self, copies: Sequence[Tuple[Tensor, Tensor]]) -> None:
        """Shared memory → tensors of the device (pairs of tensor and place). When this returns, the memory may change."""
        device = self.device
        device.copy_after(device.computed())
        with device.copying():
            for tensor, place in copies:
                device.copy(tensor, device.received(place, tensor))
                device.keep(tensor)
        event = device.copied()
        device.compute_after(event)
        event.synchronize()

    def wait_for_computing(self) -> None:
        """Waits until the device has computed all that it was asked for: what follows is copying alone."""
        self.device.computed().synchronize()

