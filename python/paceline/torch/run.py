"""A script's part in a run: what ``attach`` returns."""

from __future__ import annotations

import contextlib
import functools
import types
from typing import Any, Callable, Dict, Iterator, Optional, Union

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..attach import AttachError, Attachment
from . import state
from .clock import StepClock, now
from .delegated import Delegated
from .exchange import Exchange, GradientExchange, WeightExchange
from .loader import samples_in, shard
from .memory import NamedParameters, SharedMemory
from .optimizer import ServedOptimizer

Number = Union[float, int, Tensor]

# Looking at the socket is a system call, and short steps have none.
_HEAR_EVERY_NS = 5_000_000

class Run:
    """A script that was started alone: everything is as it would be without Paceline."""

    rank: int = 0
    """This worker's number: rank 0 reports the run's loss and accuracy."""
    workers: int = 1
    """How many workers there are."""
    seed: int = 0
    """The run's seed."""

    def __init__(self, model: nn.Module, optimizer: Optional[torch.optim.Optimizer] = None) -> None:
        self.model = model
        self.optimizer = optimizer

    @property
    def step(self) -> int:
        """The number of steps that the run has made."""
        return 0

    @property
    def over(self) -> bool:
        """Whether the run is over: end the loop. Loaders of :meth:`shard` and :meth:`epochs` end by themselves."""
        return False

    def shard(self, data: Any, *, drop_last: Optional[bool] = None, **loader_options: Any) -> Any:
        """This worker's share of a ``DataLoader`` or ``Dataset``.

        A loader comes back as a loader of the same kind and settings: the batch size is each worker's, as it is in
        torch's own DDP. Its order is the run's (seed and epoch) if the loader shuffles. It ends when the run is over.

        A dataset comes back as a view of every p-th sample; or, with ``batch_size=…`` and other arguments of
        ``DataLoader``, as a loader of it.

        :param drop_last: left out, every worker gets the same number of samples, and at most p − 1 samples are left
            out; ``True`` drops an incomplete last batch too; ``False`` drops nothing: workers may then have different
            numbers of batches, and the run ends when the first one has no more.
        """
        return shard(None, data, drop_last, loader_options)

    def report(self, **values: Number) -> None:
        """Figures for the record: numbers or tensors of one element.

        ``loss`` and ``accuracy`` become the run's own (rank 0's last ones are its result and what targets look at);
        other names are kept beside them.
        """
        for name, value in values.items():
            _as_number(name, value)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of a backward inside are only added up, for gradient accumulation; nothing is exchanged."""
        yield

    def keep(self, **objects: Any) -> None:
        """Keeps the state of further objects (a scheduler, a scaler) in checkpoints, and restores it here.

        Call it once they are made. Each needs ``state_dict`` and ``load_state_dict``.
        """
        for name, kept in objects.items():
            state.check(name, kept)

    def epochs(self, count: int) -> Iterator[int]:
        """``range(count)`` that goes on where a resumed run was, and ends when the run is over."""
        return iter(range(count))

    def steps(self, count: int) -> Iterator[int]:
        """``range(count)`` for loops without a loader: goes on where a resumed run was, ends when the run is over."""
        return iter(range(count))

    def leave(self) -> None:
        """Ends this worker's part in the run. Happens by itself when the script ends."""


def _as_number(name: str, value: Any) -> float:
    if isinstance(value, Tensor):
        if value.numel() == 1 and not value.is_complex():
            return float(value.detach())
        found = f"a tensor of the shape {tuple(value.shape)}"
    elif isinstance(value, (bool, int, float)):
        return float(value)
    elif getattr(value, "shape", None) == () and hasattr(value, "item"):  # a NumPy scalar
        return float(value.item())
    else:
        found = f"{type(value).__name__}"
    raise TypeError(f"report({name}=…): {found}; a number or a tensor of one element is possible, such as loss.mean()")


class AttachedRun(Run):
    """A script that a rank has started."""

    def __init__(
        self,
        link: Attachment,
        model: nn.Module,
        optimizer: Optional[torch.optim.Optimizer],
        named: NamedParameters,
        *,
        overlap: bool,
        method: str,
        find_unused_parameters: bool,
    ) -> None:
        super().__init__(model, optimizer)
        self.link = link
        self.workers, self.seed = link.workers, link.seed
        self._depth = 0
        self._synchronised = True
        self.accumulating: Optional[Callable[[], bool]] = None
        """Set by a trainer's callback: whether the backward that begins is one that only adds gradients up."""
        self._memory = SharedMemory(link, named)
        self._clock = StepClock(self._memory)
        self._exchange = self._make_exchange(overlap)
        self.checkpoint = state.Checkpoint(self)
        self._memory.put_parameters()
        link.start()
        self.rank = link.rank
        self._memory.take_parameters()
        self.checkpoint.restore(link.kept)
        self._delegated: Optional[Delegated] = None
        if link.delegated is not None:
            self._delegated = Delegated(link, model, method, find_unused_parameters)
        link.before_leave = self._before_leave
        self._watch_backward()
        self._watch_optimizer()
        model.register_forward_pre_hook(self._forward_begins, with_kwargs=True)
        self._counted = False
        self._updated = True
        self._heard_ns = 0
        self._clock.mark = now()

    def _make_exchange(self, overlap: bool) -> Exchange:
        link, memory, clock = self.link, self._memory, self._clock
        if link.gives == "nothing":
            return Exchange(link, memory, clock)
        if link.gives in ("updates", "parameters"):
            return WeightExchange(link, memory, clock)
        if link.gives != "gradients":
            raise AttachError(f"the rank asks for `{link.gives}`, which this version of the package does not know")
        served = ServedOptimizer(self.optimizer) if link.takes == "parameters" else None
        return GradientExchange(link, memory, clock, overlap=overlap, served=served)

    @property
    def step(self) -> int:
        return self.link.step

    @property
    def over(self) -> bool:
        link = self.link
        # Where the last step is known, the loop ends there: one more forward would change BatchNorm's statistics.
        return link.over or link.ended or (link.until is not None and link.step >= link.until)

    # What the script calls.

    def shard(self, data: Any, *, drop_last: Optional[bool] = None, **loader_options: Any) -> Any:
        return shard(self, data, drop_last, loader_options)

    def report(self, **values: Number) -> None:
        self.link.report(**{name: _as_number(name, value) for name, value in values.items()})

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self._synchronised = self._synchronised, False
        try:
            with self._delegated.no_sync() if self._delegated is not None else contextlib.nullcontext():
                yield
        finally:
            self._synchronised = before

    def keep(self, **objects: Any) -> None:
        for name, kept in objects.items():
            state.check(name, kept)
            self.checkpoint.keep(name, kept)

    def epochs(self, count: int) -> Iterator[int]:
        for epoch in range(self.checkpoint.first_epoch, count):
            self.checkpoint.epoch_begins(epoch)
            self.between_steps()
            if self.over:
                return
            yield epoch

    def steps(self, count: int) -> Iterator[int]:
        for step in range(self.link.step, count):
            self.between_steps()
            if self.over:
                return
            yield step

    def leave(self) -> None:
        self.link.leave()

    def _before_leave(self) -> None:
        self._save_if_wanted()
        if not self._exchange.frozen:
            self._memory.put_parameters()
        self._memory.close()
        if self._delegated is not None:
            self._delegated.leave()

    # What happens in the script's loop.

    def batch_begins(self, asked_ns: int, samples: int) -> None:
        """A loader of :meth:`shard` hands over a batch that it was asked for at ``asked_ns``."""
        clock = self._clock
        clock.loop_waits(asked_ns)
        clock.loop_waits(now())
        clock.samples += samples

    def loop_ends(self) -> None:
        """A loader of :meth:`shard` has no more batches: what follows is no training until it is asked again."""
        self._clock.loop_waits(now())
        self._clock.evaluates = True

    def counts_samples(self) -> None:
        """A loader of :meth:`shard` counts: the model's input need not be looked at."""
        self._counted = True

    def between_steps(self) -> None:
        """Between two steps: a step without an update is closed, a checkpoint made, the rank heard."""
        link = self.link
        if link.ended:
            return
        if not link.over:
            self._exchange.close_open_step()
            if now() - self._heard_ns > _HEAR_EVERY_NS:
                link.poll()
                self._heard_ns = now()
        self._save_if_wanted()
        if self._delegated is not None:
            self._delegated.hold_back()
        if link.over:
            self._exchange.freeze()

    def _save_if_wanted(self) -> None:
        if self.link.save_wanted and not self.link.ended:
            self._memory.put_parameters()
            self.link.save(self.checkpoint.to_bytes())

    def _forward_begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """Without a loader of :meth:`shard`, the model's input tells where a step begins and how many samples it has."""
        clock = self._clock
        if not (model.training and torch.is_grad_enabled()):
            clock.evaluates = True
            return
        if self._counted:
            return
        begun = now()
        if self._updated:
            self._updated = False
            self.between_steps()
            clock.loop_waits(begun)
        clock.samples += samples_in(args, kwargs)
        clock.mark = now()

    def _watch_backward(self) -> None:
        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> None:
            self._backward(original, args, kwargs)

        # Both loss.backward() and a checkpoint's own backward come this way, so nesting is seen, which the engine's
        # callbacks do not tell: they come at the end of an inner backward too.
        torch.autograd.backward = backward
        if self._exchange.watches_tensors:
            for number, parameter in enumerate(self._memory.parameters):
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    self._exchange.tensor_hook(number)
                )

    def _backward(self, original: Callable[..., None], args: Any, kwargs: Dict[str, Any]) -> None:
        exchange, clock = self._exchange, self._clock
        if self._depth or self.link.ended:
            exchange.nested = self._depth > 0
            original(*args, **kwargs)
            return
        self._save_if_wanted()
        synchronised = self._synchronised and not (self.accumulating is not None and self.accumulating())
        begun = now()
        clock.forward_ns += begun - clock.mark
        exchange.backward_begins(synchronised)
        copied_ns = self._memory.copying_ns
        clock.add_loss(args[0] if args else kwargs.get("tensors"), self.checkpoint.loss_scale())
        self._depth = 1
        try:
            original(*args, **kwargs)
        except BaseException:
            exchange.backward_failed()
            raise
        finally:
            self._depth = 0
        exchange.backward_returned(synchronised)
        clock.backward_ns += now() - begun - (self._memory.copying_ns - copied_ns)
        exchange.backward_ends(synchronised)
        clock.mark = now()

    def _watch_optimizer(self) -> None:
        optimizer = self.optimizer
        if isinstance(self._exchange, GradientExchange) and self.link.takes == "parameters":
            assert optimizer is not None
            optimizer.step = types.MethodType(_served_step(self, self._exchange), optimizer)  # type: ignore[method-assign]
            _refuse_scalers()
        elif optimizer is not None:
            if self._exchange.watches_update_begin:
                optimizer.register_step_pre_hook(self._update_begins)
            optimizer.register_step_post_hook(self._update_ends)
        else:
            if self._exchange.watches_update_begin:
                register_optimizer_step_pre_hook(self._update_begins)
            register_optimizer_step_post_hook(self._update_ends)

    def _ours(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer trains the model: without one given to ``attach``, every optimizer's steps are seen."""
        if self.optimizer is optimizer:
            return not self.link.ended
        if self.optimizer is None and any(
            p is self._memory.parameters[0] for group in optimizer.param_groups for p in group["params"]
        ):
            self.optimizer = optimizer
            self.checkpoint.restore_optimizer()
        return self.optimizer is optimizer and not self.link.ended

    def _update_begins(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._ours(optimizer):
            self._exchange.update_begins()

    def _update_ends(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._ours(optimizer):
            self.update_made()

    def update_made(self) -> None:
        """An update has been made: by the optimizer, or by servers."""
        clock = self._clock
        # `mark` is when the update began; or when backward ended, where nobody watches its beginning.
        clock.update_ns += now() - clock.mark
        self._updated = True
        self._exchange.update_ends(self._synchronised)
        if self._delegated is not None:
            self._delegated.update_made()
        clock.mark = now()


def _refuse_scalers() -> None:
    """Has a GradScaler say at its first loss that servers would get scaled gradients: it unscales them afterwards, in a way
    that leaves no trace on a tensor."""
    for module in (torch.amp, torch.cuda.amp):
        scaler = getattr(module, "GradScaler", None)
        if scaler is None or getattr(scaler.scale, "refuses", False):
            continue

        def scale(self: Any, outputs: Any, original: Callable[..., Any] = scaler.scale) -> Any:
            if self.is_enabled():
                raise AttachError(
                    "a GradScaler unscales gradients when the servers have them already (--apply server): use --apply worker"
                )
            return original(self, outputs)

        scale.refuses = True  # type: ignore[attr-defined]
        scaler.scale = scale


def _served_step(run: AttachedRun, exchange: GradientExchange) -> Callable[..., Any]:
    def step(optimizer: torch.optim.Optimizer, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Servers make this step (--apply server)."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        optimizer._opt_called = True  # type: ignore[attr-defined]  # for schedulers, which would warn
        exchange.served_step()
        run._clock.mark = now()
        run.update_made()
        return loss

    return step
