"""When a step's numbers travel: one class per kind of exchange (``WELCOME``'s ``gives`` and ``takes``)."""

from __future__ import annotations

import array
from typing import Callable, List, Optional

import torch
from torch import Tensor

from ..attach import AttachError, Attachment
from ..frames import UNUSED
from .clock import StepClock, now
from .memory import SharedMemory
from .optimizer import ServedOptimizer


class Exchange:
    """Nothing is exchanged: an account per update is all that the rank gets."""

    watches_tensors = False
    """Whether each tensor says when its gradient is final."""
    watches_update_begin = False
    """Whether something must happen before an update."""

    def __init__(self, link: Attachment, memory: SharedMemory, clock: StepClock) -> None:
        self.link = link
        self.memory = memory
        self.clock = clock
        self.nested = False
        """Whether a backward runs inside another: checkpointing with use_reentrant=True."""
        self.frozen = False
        """Whether the run is over: the parameters stay as they are in the memory."""

    def backward_begins(self, synchronised: bool) -> None:
        """The outermost backward begins."""

    def backward_returned(self, synchronised: bool) -> None:
        """The outermost backward has returned; a device may still compute. Nothing was accounted for yet."""

    def backward_ends(self, synchronised: bool) -> None:
        """The outermost backward has ended."""

    def backward_failed(self) -> None:
        """The outermost backward has raised an exception."""

    def tensor_hook(self, number: int) -> Callable[[Tensor], None]:
        """What is called when the gradient of a tensor is final."""
        raise NotImplementedError

    def update_begins(self) -> None:
        """The optimizer's step begins."""

    def update_ends(self, synchronised: bool) -> None:
        """The optimizer's step has ended."""
        if self.frozen:
            self.memory.take_parameters()
        elif synchronised:
            self.link.account(*self.clock.numbers())

    def close_open_step(self) -> None:
        """Makes the exchange of a step whose update never came (a GradScaler skips it)."""

    def freeze(self) -> None:
        """Keeps the parameters as they are: the run is over, whatever the script's loop still does."""
        if not self.frozen:
            self.memory.put_parameters()
            self.frozen = True


class ReadyTimes:
    """When each tensor's gradient was final, if the rank wants to know."""

    def __init__(self, link: Attachment) -> None:
        self._none = array.array("I", [UNUSED] * len(link.ranges))
        self.begun = 0
        self.microseconds = self._none[:] if link.times else None

    def backward_begins(self) -> None:
        self.begun = now()
        if self.microseconds is not None:
            self.microseconds[:] = self._none

    def final(self, number: int) -> None:
        if self.microseconds is not None:
            self.microseconds[number] = (now() - self.begun) // 1000


class WeightExchange(Exchange):
    """Updates or parameters travel after the optimizer's step; parameters come back."""

    watches_update_begin = True

    def __init__(self, link: Attachment, memory: SharedMemory, clock: StepClock) -> None:
        super().__init__(link, memory, clock)
        self.watches_tensors = link.times
        self._times = ReadyTimes(link)
        self._open = False
        self._gives_parameters = link.gives == "parameters"
        # Where parameters travel, the memory does not tell what they were before the update.
        self._before: List[Tensor] = [torch.empty_like(p) for p in memory.parameters] if self._gives_parameters else []

    def backward_begins(self, synchronised: bool) -> None:
        self._times.backward_begins()

    def backward_ends(self, synchronised: bool) -> None:
        self._open = self._open or synchronised

    def tensor_hook(self, number: int) -> Callable[[Tensor], None]:
        return lambda _: self._times.final(number)

    def update_begins(self) -> None:
        if self._gives_parameters and not self.frozen:
            with torch.no_grad():
                torch._foreach_copy_(self._before, self.memory.parameters)

    def update_ends(self, synchronised: bool) -> None:
        if self.frozen:
            self.memory.take_parameters()
        elif synchronised:
            self._exchange()

    def close_open_step(self) -> None:
        if self._open and not self.frozen:
            self.update_begins()
            self._exchange()

    def _exchange(self) -> None:
        self._open = False
        if self._gives_parameters:
            self.memory.put_parameters()
        else:
            self.memory.put_updates(self.link.scale)
        settled = self.link.done(**self.clock.account(), times_us=self._times.microseconds)
        if settled.over:
            self._undo_update()
            self.freeze()
            return
        if self.link.takes == "parameters":
            self.memory.take_parameters()
        self.link.taken()

    def _undo_update(self) -> None:
        """The run ended before this step."""
        if self._gives_parameters:
            with torch.no_grad():
                torch._foreach_copy_(self.memory.parameters, self._before)
        else:
            self.memory.take_parameters()


class GradientExchange(Exchange):
    """Gradients travel during backward, in buckets.

    Their mean comes back at its end; or, where servers run the optimizer (``served``), parameters at the step.
    """

    watches_tensors = True

    def __init__(
        self,
        link: Attachment,
        memory: SharedMemory,
        clock: StepClock,
        *,
        overlap: bool = True,
        served: Optional[ServedOptimizer] = None,
    ) -> None:
        super().__init__(link, memory, clock)
        self._times = ReadyTimes(link)
        self._served = served
        self._from_parameters = link.takes == "gradients-from-parameters"
        self._views = memory.parameter_views if self._from_parameters else memory.gradient_views
        self._flags = memory.used_in_parameters if self._from_parameters else memory.used_in_gradients
        count = len(memory.parameters)
        self._all = range(count)
        self._none = bytes(count)
        self._fired = bytearray(count)  # since the last exchange
        self._queued = bytearray(count)  # in this backward: final, staged or about to be
        self._sent = bytearray(count)  # in this backward: announced, must not change any more
        self._pending: List[int] = []
        self._pending_bytes = 0
        self._bytes = [4 * length for _, length in link.ranges]
        # The first backward shows whether a tensor can be final twice: it is announced at its end.
        self._overlap = overlap
        self._first = True
        self._holding = True
        self._outside = True
        self._open = False
        self._torn = False
        self._versions: List[Optional[int]] = []
        self._last: List[int] = []
        # Whether what comes back may be taken part by part: it is known by now that all of it will be.
        self._takes_parts = False
        if memory.staging is not None and link.takes == "gradients":
            link.on_arrived = self._take_parts

    def tensor_hook(self, number: int) -> Callable[[Tensor], None]:
        fired, queued, pending = self._fired, self._queued, self._pending
        size, bucket, times = self._bytes[number], self.link.bucket, self._times
        staged, staging = self.memory.staged[number], self.memory.staging

        def final(_: Tensor) -> None:
            fired[number] = 1
            if times.microseconds is not None and not staged:
                times.final(number)
            if self._sent[number]:
                self._refuse_second_gradient(number)
            if self._holding or self.nested or queued[number]:
                if self._outside:
                    self._refuse_unseen_backward()
                return
            queued[number] = 1
            pending.append(number)
            self._pending_bytes += size
            if self._pending_bytes >= bucket:
                self._announce()
            elif staging is not None and staging.busy:
                self._tell(self.memory.arrived(()))

        return final

    def _announce(self) -> None:
        pending = self._pending
        self.memory.put_gradients(pending, self.link.scale)
        for number in pending:
            self._sent[number] = 1
        self._tell(self.memory.arrived(pending))
        pending.clear()
        self._pending_bytes = 0

    def _tell(self, numbers: List[int]) -> None:
        """Announces tensors whose numbers lie in the memory. What a device copies beside is final then, and not before."""
        if numbers:
            self._note_times(numbers)
            self.link.ticket(numbers)

    def _note_times(self, numbers: List[int]) -> None:
        for number in numbers:
            if self.memory.staged[number]:
                self._times.final(number)

    def _refuse_second_gradient(self, number: int) -> None:
        raise AttachError(
            f"`{self.memory.names[number]}` got a further gradient after it had been sent (a backward inside a "
            "backward, as checkpointing with use_reentrant=True makes it, that was not there in the first step): "
            "use use_reentrant=False, or attach(..., overlap=False)"
        )

    def _refuse_unseen_backward(self) -> None:
        if not self.link.ended:
            raise AttachError(
                "gradients came by another way than loss.backward() or torch.autograd.backward(): they would not be "
                "exchanged"
            )

    def backward_begins(self, synchronised: bool) -> None:
        self._outside = False
        if self._torn:
            raise AttachError("a backward failed after a part of its gradients had been sent: the step cannot be repeated")
        if self._open:  # two backwards and no step between them, where servers run the optimizer
            self.close_open_step()
        self._times.backward_begins()
        self._holding = self.frozen or self._first or not (synchronised and self._overlap)

    def backward_failed(self) -> None:
        self._outside = self._holding = True
        self._torn = any(self._sent)
        self.memory.last_arrived(())
        self._pending.clear()
        self._pending_bytes = 0
        self._queued[:] = self._none

    def backward_returned(self, synchronised: bool) -> None:
        self._outside = self._holding = True
        if self.frozen or not synchronised or not any(self._fired):
            return
        if self.nested:
            self._overlap = self.nested = False
        if self._first:
            self._check_gradients()
            self._first = False
        # A tensor without a gradient here may keep what it has.
        self._takes_parts = self.link.on_arrived is not None and all(self._fired)
        self._last = self._stage_rest()

    def backward_ends(self, synchronised: bool) -> None:
        if self.frozen or not synchronised or not any(self._fired):
            return
        last, self._last = self._last, []
        if self._served is not None:
            self.link.ticket(last)
            self._open = True
            self._versions = self._gradient_versions()
            return
        settled = self.link.done(**self.clock.account(), times_us=self._times.microseconds, ticket=last)
        if settled.over:
            self.freeze()
        else:
            self._take()
            self.link.taken()
        self._restart()

    def _take_parts(self) -> None:
        if self._takes_parts:
            self.memory.take_early(self.link.arrived)
        self.link.arrived.clear()

    def _stage_rest(self) -> List[int]:
        """Stages what was not announced during backward, and which tensors have a gradient at all."""
        fired = self._fired
        if all(fired):
            if self.memory.used_in_gradients is not None:
                self.memory.used_in_gradients.fill_(1.0)
            rest = [number for number in self._all if not self._sent[number]]
            return self._put_last(rest)
        if self.memory.used_in_gradients is not None:
            self.memory.used_in_gradients.copy_(torch.tensor(list(fired)))
        rest = [number for number in self._all if fired[number] and not self._sent[number]]
        unused = [number for number in self._all if not fired[number]]
        self.memory.put_zeros(unused)
        return self._put_last(rest) + unused

    def _put_last(self, rest: List[int]) -> List[int]:
        """Puts the rest. A device is behind the script: each bucket is announced as it comes; the last ones come back."""
        self.memory.put_gradients(rest, self.link.scale)
        while arrived := self.memory.next_arrived():
            self._tell(arrived)
            if self._takes_parts:
                self.link.poll()
        last = self.memory.last_arrived(rest)
        self._note_times(last)
        return last

    def _take(self) -> None:
        fired = self._fired
        if all(fired):
            self.memory.take_gradients(self._all, self._views)
            return
        # A tensor that nobody used keeps its gradient, which is None mostly: decay and moments must not see zeros.
        self.memory.take_gradients([n for n in self._all if fired[n] or self._used_elsewhere(n)], self._views)

    def _used_elsewhere(self, number: int) -> bool:
        if self._flags is not None:
            return bool(self._flags[number] != 0)
        return bool(self._views[number].any())

    def _restart(self) -> None:
        self._takes_parts = False
        self.link.arrived.clear()
        self._fired[:] = self._none
        self._queued[:] = self._none
        self._sent[:] = self._none
        self._pending.clear()
        self._pending_bytes = 0

    def _check_gradients(self) -> None:
        for name, parameter in zip(self.memory.names, self.memory.parameters):
            gradient = parameter.grad
            if gradient is not None and gradient.layout != torch.strided:
                raise AttachError(
                    f"the gradient of `{name}` is sparse ({gradient.layout}), which has no fixed place in memory: "
                    "use sparse=False in its embedding"
                )

    # Where servers run the optimizer.

    def update_ends(self, synchronised: bool) -> None:
        if self.frozen:
            self.memory.take_parameters()

    def served_step(self) -> None:
        """Takes the place of the optimizer's step."""
        if self._open and not self.frozen:
            if self._versions != self._gradient_versions():
                raise AttachError(
                    "the gradients were changed between backward and step (clipping, a GradScaler), but they are with "
                    "the servers already: use --apply worker"
                )
            self._exchange_with_servers()

    def close_open_step(self) -> None:
        if self._open and not self.frozen:
            self._exchange_with_servers()

    def _exchange_with_servers(self) -> None:
        assert self._served is not None
        self._open = False
        factor = self._served.factor()
        settled = self.link.done(**self.clock.account(), factor=factor, times_us=self._times.microseconds)
        if settled.over:
            self.freeze()
        else:
            self.memory.take_parameters()
            self.link.taken()
        self._restart()

    def _gradient_versions(self) -> List[Optional[int]]:
        return [None if p.grad is None else p.grad._version for p in self.memory.parameters]
