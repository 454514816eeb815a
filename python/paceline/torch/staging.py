"""Copies between a device and the shared memory, beside what the device computes.

The device has a buffer of its own that is laid out as the memory is. Gradients are gathered in it once they are computed, one
operation for all of a bucket, and copied from there on a stream of copies; they are announced when they have arrived: a ticket is
never sent before its copy's event. What comes back travels on the same stream, into the same buffer.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any, ContextManager, Deque, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ..attach import AttachError

# Buckets are the same in each step, mostly.
_KNOWN_BUCKETS = 256


class CudaDevice:
    """A GPU with a stream for copies each way. What :class:`Staging` needs of a device is in these methods."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)
        self._back: Any = torch.cuda.Stream(device)
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

    def buffer(self, length: int) -> Tensor:
        """Memory for numbers on the device."""
        numbers = torch.zeros(length, dtype=torch.float32, device=self._device)
        # Copies of it are asked for on another stream than the one that clears it.
        torch.cuda.current_stream(self._device).synchronize()
        return numbers

    def copying(self) -> ContextManager[Any]:
        """Within it, what is copied is copied on the stream of copies."""
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

    def returning(self) -> ContextManager[Any]:
        """Within it, what is copied is copied on the stream of what comes back."""
        return torch.cuda.stream(self._back)  # type: ignore[no-any-return,unused-ignore]

    def returned(self) -> Any:
        """An event of the stream of what comes back."""
        event = torch.cuda.Event()
        event.record(self._back)
        return event

    def return_after(self, event: Any) -> None:
        """What comes back from here on waits for an event, on the device."""
        self._back.wait_event(event)

    def compute_after(self, event: Any) -> None:
        """Further computations wait for an event, on the device."""
        torch.cuda.current_stream(self._device).wait_event(event)

    def copy(self, to: Tensor, of: Tensor) -> None:
        """Copies; it need not be done when this returns. One of both lies in the shared memory."""
        to.copy_(of, non_blocking=True)


def device_of(parameters: Sequence[Tensor]) -> Optional[CudaDevice]:
    """The GPU of a model, if its parameters lie on one; several are refused."""
    found = sorted({str(parameter.device) for parameter in parameters if parameter.is_cuda})
    if len(found) > 1:
        raise AttachError(f"the model lies on several GPUs ({', '.join(found)}): each worker has one; see --gpus")
    return CudaDevice(torch.device(found[0])) if found else None


class DeviceBuffer:
    """Numbers on a device in the order of the shared memory, with a view for each tensor."""

    def __init__(self, device: Any, length: int, ranges: Sequence[Tuple[int, int]], tensors: Sequence[Tensor]) -> None:
        self.numbers: Tensor = device.buffer(length)
        self.views = [self._view(first, tensor) for (first, _), tensor in zip(ranges, tensors)]

    def _view(self, first: int, tensor: Tensor) -> Tensor:
        """The numbers of a tensor in the memory's order: row by row."""
        numbers = self.numbers[first : first + tensor.numel()]
        # A dimension of length 1 may have any stride: the tensor's own keeps operations on both together fast.
        if tensor.is_contiguous() and tensor.numel():
            return numbers.as_strided(tensor.shape, tensor.stride())
        return numbers.view(tensor.shape)


class Staging:
    """Copies under way, in their order."""

    def __init__(self, device: Any, ranges: Sequence[Tuple[int, int]], tensors: Sequence[Tensor]) -> None:
        self.device = device
        self._ranges = list(ranges)
        self._tensors = list(tensors)
        self._length = max((first + length for first, length in ranges), default=0)
        # What was computed, what was copied, and the tensors: of each bucket under way.
        self._under_way: Deque[Tuple[Any, Any, List[int]]] = deque()
        # First element and length of what came back of this step already.
        self._early: List[Tuple[int, int]] = []
        self._runs: Dict[Tuple[int, ...], List[slice]] = {}

    def buffer(self) -> DeviceBuffer:
        """A further buffer of the device."""
        return DeviceBuffer(self.device, self._length, self._ranges, self._tensors)

    def runs(self, numbers: Sequence[int]) -> List[slice]:
        """The stretches without gaps that tensors lie in."""
        key = tuple(numbers)
        found = self._runs.get(key)
        if found is None:
            if len(self._runs) >= _KNOWN_BUCKETS:
                self._runs.clear()
            found = self._runs[key] = [slice(first, end) for first, end in runs_of([self._ranges[n] for n in numbers])]
        return found

    @property
    def busy(self) -> bool:
        """Whether copies are under way."""
        return bool(self._under_way)

    def put(self, host: Tensor, buffer: DeviceBuffer, numbers: Sequence[int], tensors: Sequence[Tensor], scale: float) -> None:
        """Tensors times ``scale`` → shared memory, by way of the buffer, once they are computed."""
        places, others = [], []
        for number, tensor in zip(numbers, tensors):
            place = buffer.views[number]
            if tensor.data_ptr() != place.data_ptr():  # a gradient that stayed where it was exchanged is there already
                places.append(place)
                others.append(tensor)
        copy_all(places, others)
        runs = self.runs(numbers)
        if scale != 1.0:
            for run in runs:
                buffer.numbers[run].mul_(scale)
        self.send(host, buffer, numbers)

    def send(self, host: Tensor, buffer: DeviceBuffer, numbers: Sequence[int]) -> None:
        """Buffer → shared memory, once it is computed."""
        device = self.device
        computed = device.computed()
        device.copy_after(computed)
        with device.copying():
            for run in self.runs(numbers):
                device.copy(host[run], buffer.numbers[run])
        self._under_way.append((computed, device.copied(), list(numbers)))

    def arrived(self) -> List[int]:
        """Tensors whose numbers have arrived since this was last asked for, without waiting."""
        numbers: List[int] = []
        while self._under_way and self._under_way[0][1].query():
            numbers += self._under_way.popleft()[2]
        return numbers

    def wait_for_first(self) -> List[int]:
        """The tensors of the first bucket under way: waits for it."""
        _, copied, numbers = self._under_way.popleft()
        copied.synchronize()
        return numbers

    @property
    def waiting(self) -> int:
        """Buckets under way."""
        return len(self._under_way)

    def wait_for_computing(self) -> None:
        """Waits until the device has computed what is under way: what follows is copying alone."""
        if self._under_way:
            self._under_way[-1][0].synchronize()

    def wait(self) -> List[int]:
        """Waits for all that is under way; its tensors."""
        numbers: List[int] = []
        while self._under_way:
            numbers += self.wait_for_first()
        return numbers

    def take(self, buffer: DeviceBuffer, host: Tensor, numbers: Sequence[int]) -> Any:
        """Shared memory → buffer; what is computed from here on waits for it. An event: the memory may change."""
        device = self.device
        early, self._early = self._early, []
        runs = without(self.runs(numbers), early) if early else self.runs(numbers)
        if runs:
            # Whatever still reads or writes the buffer was asked for before.
            device.return_after(device.computed())
            with device.returning():
                for run in runs:
                    device.copy(buffer.numbers[run], host[run])
        event = device.returned()
        device.compute_after(event)
        return event

    def take_early(self, buffer: DeviceBuffer, host: Tensor, ranges: Sequence[Tuple[int, int]]) -> None:
        """Shared memory → buffer, of parts that have left it, before all of it is there; :meth:`take` takes the rest."""
        device = self.device
        with device.returning():
            for first, end in runs_of(ranges):
                end = min(end, self._length)
                if first < end:
                    device.copy(buffer.numbers[first:end], host[first:end])
        self._early += ranges


def copy_all(to: Sequence[Tensor], of: Sequence[Tensor]) -> None:
    """Copies tensors. One pair that is laid out in two ways would make an operation of each."""
    alike = [a.stride() == b.stride() for a, b in zip(to, of)]
    for wanted in (True, False):
        pairs = [(a, b) for a, b, same in zip(to, of, alike) if same == wanted]
        if pairs:
            torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs])


def runs_of(ranges: Sequence[Tuple[int, int]]) -> List[Tuple[int, int]]:
    """First and end of the stretches without gaps."""
    runs: List[Tuple[int, int]] = []
    for first, length in sorted(ranges):
        if runs and runs[-1][1] == first:
            runs[-1] = (runs[-1][0], first + length)
        else:
            runs.append((first, first + length))
    return runs


def without(runs: Sequence[slice], ranges: Sequence[Tuple[int, int]]) -> List[slice]:
    """What is left of stretches when ranges (first element, length) are taken away."""
    left: List[slice] = []
    taken = runs_of(ranges)
    for run in runs:
        first = run.start
        for begin, end in taken:
            if end <= first or begin >= run.stop:
                continue
            if first < begin:
                left.append(slice(first, begin))
            first = end
        if first < run.stop:
            left.append(slice(first, run.stop))
    return left
