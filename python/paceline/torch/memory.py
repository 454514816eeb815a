"""A model's parameters and gradients in the memory that is shared with the rank."""

from __future__ import annotations

import time
from typing import Any, List, Optional, Sequence, Tuple

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
        runs = _runs(link.ranges)
        self.parameter_runs = [parameter_numbers[first:end] for first, end in runs]
        self.gradient_runs = [gradient_numbers[first:end] for first, end in runs]
        self.used_in_gradients = self.used_in_parameters = None
        if link.used is not None:
            flags = slice(link.used, link.used + len(named))
            self.used_in_gradients = gradient_numbers[flags]
            self.used_in_parameters = parameter_numbers[flags]
        # What a GPU computes is copied beside it.
        device = staging.device_of(self.parameters)
        self.staging: Optional[staging.Staging] = None
        if device is not None:
            self.staging = staging.Staging(device)
            device.register(parameter_numbers)
            device.register(gradient_numbers)
        self.staged = [device is not None and device.takes(p) for p in self.parameters]
        # What a product can be written of straight into the memory.
        self.direct = [
            p.dtype == torch.float32 and p.device.type == "cpu" and not staged
            for p, staged in zip(self.parameters, self.staged)
        ]
        # Gradients that can stay where they were exchanged.
        self.in_place = [
            direct and p.stride() == view.stride()
            for direct, p, view in zip(self.direct, self.parameters, self.gradient_views)
        ]
        self.copying_ns = 0
        """Time spent in copies since it was last set to 0."""

    def put_parameters(self) -> None:
        """Parameters → memory."""
        self._copy(self.parameter_views, self.parameters)

    def take_parameters(self) -> None:
        """Memory → parameters."""
        begun = time.perf_counter_ns()
        with torch.no_grad():
            self._take(self.parameters, self.parameter_views)
        self.copying_ns += time.perf_counter_ns() - begun

    def put_updates(self, scale: float) -> None:
        """How far each parameter is from what lies in the parameter memory, times ``scale`` → gradient memory."""
        begun = time.perf_counter_ns()
        with torch.no_grad():
            torch._foreach_copy_(self.gradient_views, self.parameters)
            for moved, settled in zip(self.gradient_runs, self.parameter_runs):
                moved.sub_(settled).mul_(scale)
        self.copying_ns += time.perf_counter_ns() - begun

    def put_gradients(self, numbers: Sequence[int], scale: float) -> None:
        """Gradients times ``scale`` → gradient memory."""
        begun = time.perf_counter_ns()
        views, parameters, direct = self.gradient_views, self.parameters, self.direct
        copies: List[Tuple[int, Tensor]] = []
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
                copies.append((number, gradient))
            elif direct[number]:
                torch.mul(gradient, scale, out=views[number])
            else:
                views[number].copy_(gradient).mul_(scale)
        if self.staging is not None and copies:
            self.staging.put([n for n, _ in copies], [(views[n], gradient) for n, gradient in copies], scale)
        self.copying_ns += time.perf_counter_ns() - begun

    def arrived(self, numbers: Sequence[int]) -> List[int]:
        """Of ``numbers``, which were just put, and of those before: what lies in the memory by now, and was not told yet."""
        if self.staging is None:
            return list(numbers)
        return [number for number in numbers if not self.staged[number]] + self.staging.arrived()

    def wait_for_copies(self, numbers: Sequence[int]) -> List[int]:
        """The same once all have arrived."""
        if self.staging is None:
            return list(numbers)
        begun = time.perf_counter_ns()
        found = [number for number in numbers if not self.staged[number]] + self.staging.wait()
        self.copying_ns += time.perf_counter_ns() - begun
        return found

    def wait_for_computing(self) -> None:
        """Waits until gradients are computed, where a device does that beside: its time is backward's, not the copies'."""
        if self.staging is not None:
            self.staging.wait_for_computing()

    def close(self) -> None:
        """Nothing is exchanged any more."""
        if self.staging is not None:
            self.staging.wait()
            self.staging.device.unregister()

    def put_zeros(self, numbers: Sequence[int]) -> None:
        """Zeros → gradient memory, for tensors that had no gradient."""
        for number in numbers:
            gradient = self.parameters[number].grad
            if gradient is not None and gradient.data_ptr() == self.gradient_views[number].data_ptr():
                self.parameters[number].grad = gradient.clone()  # of an earlier step, and still the script's
        torch._foreach_zero_([self.gradient_views[number] for number in numbers])

    def take_gradients(self, numbers: Sequence[int], views: List[Tensor]) -> None:
        """Memory → gradients of ``numbers``: they become views of it, or get a copy, laid out as the parameter is."""
        begun = time.perf_counter_ns()
        parameters = self.parameters
        in_place = self.in_place if views is self.gradient_views else [False] * len(views)
        with torch.no_grad():
            for number in numbers:
                if in_place[number]:
                    parameters[number].grad = views[number]
                elif parameters[number].grad is None:
                    parameters[number].grad = torch.empty_like(parameters[number])
            copied = [number for number in numbers if not in_place[number]]
            if copied:
                self._take([parameters[number].grad for number in copied], [views[number] for number in copied])
        self.copying_ns += time.perf_counter_ns() - begun

    def _take(self, to: List[Any], of: List[Tensor]) -> None:
        """Memory → tensors; when it returns, the memory may change."""
        if self.staging is None:
            torch._foreach_copy_(to, of)
            return
        takes = self.staging.device.takes
        self.staging.take([(tensor, place) for tensor, place in zip(to, of) if takes(tensor)])
        others = [(tensor, place) for tensor, place in zip(to, of) if not takes(tensor)]
        if others:
            torch._foreach_copy_([tensor for tensor, _ in others], [place for _, place in others])

    def _copy(self, to: List[Tensor], of: List[Tensor]) -> None:
        begun = time.perf_counter_ns()
        with torch.no_grad():
            torch._foreach_copy_(to, of)
        self.copying_ns += time.perf_counter_ns() - begun


def _views(numbers: Tensor, ranges: Sequence[Tuple[int, int]], parameters: Sequence[Tensor]) -> List[Tensor]:
    return [numbers[first : first + length].view(p.shape) for (first, length), p in zip(ranges, parameters)]


def _runs(ranges: Sequence[Tuple[int, int]]) -> List[Tuple[int, int]]:
    """First and end of the stretches without gaps."""
    runs: List[Tuple[int, int]] = []
    for first, length in sorted(ranges):
        if runs and runs[-1][1] == first:
            runs[-1] = (runs[-1][0], first + length)
        else:
            runs.append((first, first + length))
    return runs
