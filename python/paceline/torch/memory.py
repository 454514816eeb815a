"""A model's parameters and gradients in the memory that is shared with the rank."""

from __future__ import annotations

import time
from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from ..attach import AttachError, Attachment
from . import staging

NamedParameters = List[Tuple[str, nn.Parameter]]


def trained_parameters(model: nn.Module) -> NamedParameters:
    """The parameters that a run exchanges: those that want a gradient, tied ones once, in the model's order."""
    found = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    for name, parameter in found:
        reason = _refusal(parameter)
        if reason:
            raise AttachError(f"parameter `{name}` {reason}")
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            raise AttachError(
                f"module `{name}` makes sparse gradients (sparse=True), which have no fixed place in memory: "
                "use sparse=False"
            )
    if not found:
        raise AttachError("the model has no parameter that wants a gradient: there is nothing to train")
    return found


def _refusal(parameter: nn.Parameter) -> str:
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        return "has no shape yet (a lazy module): compute one batch before attaching"
    if parameter.is_complex():
        return "is complex; the exchange is in real numbers: keep real and imaginary part as two parameters"
    if type(parameter).__name__ == "DTensor" or type(parameter.data).__name__ == "DTensor":
        return "is a DTensor (FSDP or tensor parallelism): each worker must hold the whole model"
    if parameter.layout != torch.strided:
        return f"has the layout {parameter.layout}: only dense tensors can be exchanged"
    if not parameter.is_floating_point():
        return f"has the type {parameter.dtype}: only floating-point numbers can be exchanged"
    return ""


class SharedMemory:
    """Views of both memory files, a tensor for each parameter: ``float32``, in the shape of the parameter.

    Parameters may have another type, device or order of elements: copies convert. No parameter is ever re-pointed into
    the memory. A gradient is, once it was exchanged, where type, device and order agree: nothing is copied back.
    """

    def __init__(self, link: Attachment, named: NamedParameters) -> None:
        self.names = [name for name, _ in named]
        self.parameters: List[Tensor] = [parameter for _, parameter in named]
        parameter_numbers = torch.frombuffer(link.parameter_file, dtype=torch.float32)
        gradient_numbers = torch.frombuffer(link.gradient_file, dtype=torch.float32)
        self.parameter_views = _views(parameter_numbers, link.ranges, self.parameters)
        self.gradient_views = _views(gradient_numbers, link.ranges, self.parameters)
        runs = staging.runs_of(link.ranges)
        self.parameter_runs = [parameter_numbers[first:end] for first, end in runs]
        self.gradient_runs = [gradient_numbers[first:end] for first, end in runs]
        self.used_in_gradients = self.used_in_parameters = None
        if link.used is not None:
            flags = slice(link.used, link.used + len(named))
            self.used_in_gradients = gradient_numbers[flags]
            self.used_in_parameters = parameter_numbers[flags]
        self._hosts = (gradient_numbers, parameter_numbers)
        # What a GPU computes is copied beside it.
        device = staging.device_of(self.parameters)
        self.staged = [device is not None and device.takes(p) for p in self.parameters]
        self._on_device = [number for number, staged in enumerate(self.staged) if staged]
        self._elsewhere = [number for number, staged in enumerate(self.staged) if not staged]
        self.staging: Optional[staging.Staging] = None
        if device is not None:
            self.staging = staging.Staging(device, link.ranges, [p.detach() for p in self.parameters])
            self._device_gradients: staging.DeviceBuffer = self.staging.buffer()
            self._device_parameters: staging.DeviceBuffer = self.staging.buffer()
            device.register(parameter_numbers)
            device.register(gradient_numbers)
        # What a product can be written of straight into the memory.
        self.direct = [
            p.dtype == torch.float32 and p.device.type == "cpu" and not staged
            for p, staged in zip(self.parameters, self.staged)
        ]
        # Gradients that can stay where they were exchanged: in the memory, or in the device's buffer.
        exchanged = self.gradient_views
        if self.staging is not None:
            own = self._device_gradients.views
            exchanged = [own[n] if staged else exchanged[n] for n, staged in enumerate(self.staged)]
        self.in_place = [
            (direct or staged and p.dtype == torch.float32) and p.stride() == view.stride()
            for direct, staged, p, view in zip(self.direct, self.staged, self.parameters, exchanged)
        ]
        self.copying_ns = 0
        """Time spent in copies since it was last set to 0."""

    def put_parameters(self) -> None:
        """Parameters → memory."""
        begun = time.perf_counter_ns()
        with torch.no_grad():
            elsewhere = self._elsewhere
            if elsewhere:
                torch._foreach_copy_(_of(self.parameter_views, elsewhere), _of(self.parameters, elsewhere))
            if self.staging is not None:
                numbers = self._on_device
                self.staging.put(self._hosts[1], self._device_parameters, numbers, _of(self.parameters, numbers), 1.0)
                self.staging.wait()
        self.copying_ns += time.perf_counter_ns() - begun

    def take_parameters(self) -> None:
        """Memory → parameters; when it returns, the memory may change."""
        begun = time.perf_counter_ns()
        with torch.no_grad():
            elsewhere = self._elsewhere
            if elsewhere:
                torch._foreach_copy_(_of(self.parameters, elsewhere), _of(self.parameter_views, elsewhere))
            if self.staging is not None:
                numbers, buffer = self._on_device, self._device_parameters
                taken = self.staging.take(buffer, self._hosts[1], numbers)
                staging.copy_all(_of(self.parameters, numbers), _of(buffer.views, numbers))
                taken.synchronize()
        self.copying_ns += time.perf_counter_ns() - begun

    def put_updates(self, scale: float) -> None:
        """How far each parameter is from what was last taken of the parameter memory, times ``scale`` → gradient memory."""
        begun = time.perf_counter_ns()
        with torch.no_grad():
            if self.staging is None:
                torch._foreach_copy_(self.gradient_views, self.parameters)
                for moved, settled in zip(self.gradient_runs, self.parameter_runs):
                    moved.sub_(settled).mul_(scale)
            else:
                for number in self._elsewhere:
                    moved = self.gradient_views[number].copy_(self.parameters[number])
                    moved.sub_(self.parameter_views[number]).mul_(scale)
                moved_there, numbers = self._device_gradients, self._on_device
                staging.copy_all(_of(moved_there.views, numbers), _of(self.parameters, numbers))
                for run in self.staging.runs(numbers):
                    moved_there.numbers[run].sub_(self._device_parameters.numbers[run]).mul_(scale)
                self.staging.send(self._hosts[0], moved_there, numbers)
                self.staging.wait()
        self.copying_ns += time.perf_counter_ns() - begun

    def put_gradients(self, numbers: Sequence[int], scale: float) -> None:
        """Gradients times ``scale`` → gradient memory."""
        begun = time.perf_counter_ns()
        views, parameters, direct = self.gradient_views, self.parameters, self.direct
        copied: List[int] = []
        gradients: List[Tensor] = []
        for number in numbers:
            gradient = parameters[number].grad
            if gradient is None:
                raise AttachError(
                    f"the gradient of `{self.names[number]}` vanished during backward: an optimizer that steps inside "
                    "backward cannot be exchanged"
                )
            if gradient.requires_grad:  # backward(create_graph=True)
                gradient = gradient.detach()
            if self.staged[number]:
                copied.append(number)
                gradients.append(gradient)
            elif direct[number]:
                torch.mul(gradient, scale, out=views[number])
            else:
                views[number].copy_(gradient).mul_(scale)
        if self.staging is not None and copied:
            self.staging.put(self._hosts[0], self._device_gradients, copied, gradients, scale)
        self.copying_ns += time.perf_counter_ns() - begun

    def arrived(self, numbers: Sequence[int]) -> List[int]:
        """Of ``numbers``, which were just put, and of those before: what lies in the memory by now, and was not told yet."""
        if self.staging is None:
            return list(numbers)
        return [number for number in numbers if not self.staged[number]] + self.staging.arrived()

    def next_arrived(self) -> List[int]:
        """The tensors of the bucket that arrives next, which is waited for; none if there is at most one: see :meth:`last_arrived`.

        The device computes meanwhile, so that this is no time of copies.
        """
        return self.staging.wait_for_first() if self.staging is not None and self.staging.waiting > 1 else []

    def last_arrived(self, numbers: Sequence[int]) -> List[int]:
        """``numbers``, which were just put, and all that is still under way: waits for it. Computing is backward's time."""
        if self.staging is None:
            return list(numbers)
        self.staging.wait_for_computing()
        begun = time.perf_counter_ns()
        found = [number for number in numbers if not self.staged[number]] + self.staging.wait()
        self.copying_ns += time.perf_counter_ns() - begun
        return found

    def close(self) -> None:
        """Nothing is exchanged any more."""
        if self.staging is not None:
            self.staging.wait()
            self.staging.device.unregister()

    def put_zeros(self, numbers: Sequence[int]) -> None:
        """Zeros → gradient memory, for tensors that had no gradient."""
        for number in numbers:
            gradient = self.parameters[number].grad
            if gradient is not None and not self.staged[number] and gradient.data_ptr() == self.gradient_views[number].data_ptr():
                self.parameters[number].grad = gradient.clone()  # of an earlier step, and still the script's
        torch._foreach_zero_([self.gradient_views[number] for number in numbers])

    def take_early(self, ranges: Sequence[Tuple[int, int]]) -> None:
        """Parts of the mean gradient that are in the memory → device, while the rest is exchanged."""
        if self.staging is not None:
            self.staging.take_early(self._device_gradients, self._hosts[0], ranges)

    def take_gradients(self, numbers: Sequence[int], views: List[Tensor]) -> None:
        """Memory → gradients of ``numbers``: they become views of it, or get a copy, laid out as the parameter is.

        What a device copies need not be done when this returns: it comes before what is computed next, and before the next
        gradients are put into the memory, which nobody changes before those are announced.
        """
        begun = time.perf_counter_ns()
        parameters, in_place = self.parameters, self.in_place
        from_gradients = views is self.gradient_views
        of: List[Tensor] = views
        if self.staging is not None:
            there = [number for number in numbers if self.staged[number]]
            self.staging.take(self._device_gradients, self._hosts[0 if from_gradients else 1], there)
            device_views = self._device_gradients.views
            of = [device_views[n] if staged else views[n] for n, staged in enumerate(self.staged)]
        copied: List[int] = []
        with torch.no_grad():
            for number in numbers:
                if in_place[number] and (from_gradients or self.staged[number]):
                    parameters[number].grad = of[number]
                    continue
                copied.append(number)
                if parameters[number].grad is None:
                    parameters[number].grad = torch.empty_like(parameters[number])
            if copied:
                staging.copy_all([parameters[number].grad for number in copied], [of[number] for number in copied])  # type: ignore[misc]
        self.copying_ns += time.perf_counter_ns() - begun


def _of(tensors: Sequence[Tensor], numbers: Sequence[int]) -> List[Tensor]:
    return [tensors[number] for number in numbers]


def _views(numbers: Tensor, ranges: Sequence[Tuple[int, int]], parameters: Sequence[Tensor]) -> List[Tensor]:
    return [numbers[first : first + length].view(p.shape) for (first, length), p in zip(ranges, parameters)]
