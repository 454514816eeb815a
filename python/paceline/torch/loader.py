"""This worker's share of the data."""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
import sys
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Optional, Tuple

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler

from ..attach import AttachError, rank_and_workers
from .clock import now

if TYPE_CHECKING:
    from .run import AttachedRun

# A loop over epochs ends long before it has seen so many without a batch.
_EMPTY_EPOCHS = 1000


def shard(run: Optional["AttachedRun"], data: Any, drop_last: Optional[bool], options: Dict[str, Any]) -> Any:
    """See :meth:`paceline.torch.Run.shard`; ``run`` is ``None`` in a script that was started alone."""
    if isinstance(data, DataLoader):
        if options:
            raise TypeError(f"shard(loader): {', '.join(options)} belong to the loader that is passed")
        return data if run is None else _shard_loader(run, data, drop_last)
    if options:
        return shard(run, DataLoader(data, drop_last=bool(drop_last), **options), drop_last, {})
    return data if run is None else share_of(data, run.rank, run.workers, drop_last)


def share_of(data: Any, rank: Optional[int], workers: int, drop_last: Optional[bool] = None) -> Any:
    """A view of every p-th sample of a dataset; without a rank, of the one that this script has when it is read."""
    even = drop_last is not False
    if isinstance(data, IterableDataset):
        return IterableShare(data, rank, workers, even)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return DatasetShare(data, rank, workers, even)
    raise TypeError(f"shard: a DataLoader or a Dataset is possible, not {type(data).__name__}")


def samples_in(*values: Any) -> int:
    """The number of samples in a batch or a model's input: the length of the first tensor in it."""
    first = values[0][0] if isinstance(values[0], (list, tuple)) and values[0] else values[0]
    if isinstance(first, Tensor) and first.dim():
        return first.shape[0]
    waiting: List[Any] = list(values)
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, Tensor):
            return value.shape[0] if value.dim() else 1
        if hasattr(value, "values"):
            waiting[:0] = value.values()
        elif isinstance(value, (list, tuple)):
            waiting[:0] = value
    return 0


def _shard_loader(run: "AttachedRun", loader: "DataLoader[Any]", drop_last: Optional[bool]) -> "DataLoader[Any]":
    if isinstance(loader, ShardedLoader):
        raise AttachError("this loader is a share already")
    if isinstance(loader.sampler, DistributedSampler):
        raise AttachError("the loader has a DistributedSampler, which splits the data already: shard a plain loader")
    even = drop_last is not False
    if drop_last is None:
        drop_last = bool(loader.drop_last)
    # A loader refuses to have its sampler changed. A copy keeps everything else that it was made with, also what
    # subclasses and newer versions of torch add.
    share = copy.copy(loader)
    attributes = vars(share)
    attributes["_iterator"] = None
    part: Any
    if isinstance(loader.dataset, IterableDataset):
        part = attributes["dataset"] = IterableShare(loader.dataset, run.rank, run.workers, even)
    elif type(loader.batch_sampler) not in (BatchSampler, type(None)):
        part = attributes["batch_sampler"] = BatchShare(loader.batch_sampler, run, even)
    else:
        part = attributes["sampler"] = SampleShare(loader.sampler, run, even)
        if loader.batch_sampler is not None:
            assert loader.batch_size is not None
            attributes["batch_sampler"] = BatchSampler(part, loader.batch_size, drop_last)
            attributes["drop_last"] = drop_last
    share.__class__ = type(type(loader).__name__, (ShardedLoader, type(loader)), {})
    assert isinstance(share, ShardedLoader)
    share._join(run, part)
    return share


class ShardedLoader(DataLoader):  # type: ignore[type-arg]
    """A loader that hands over this worker's share and ends when the run is over.

    While the model is evaluated (``model.eval()`` or ``torch.no_grad()``) it only hands over its batches.
    """

    _run: "AttachedRun"
    _part: Any
    _epoch: int
    _batches: int
    _began: bool
    _exhausted: bool
    _empty: int

    def _join(self, run: "AttachedRun", part: Any) -> None:
        epoch, batches = run.checkpoint.join(self)
        vars(self).update(_run=run, _part=part, _epoch=epoch, _batches=batches, _began=False, _exhausted=False, _empty=0)

    @property
    def position(self) -> Tuple[int, int]:
        """The epoch, and how many of its batches have been handed over."""
        return self._epoch, self._batches

    def next_epoch(self) -> None:
        """Goes on to the next epoch, if this one is at its end."""
        if self._exhausted:
            vars(self).update(_epoch=self._epoch + 1, _batches=0, _began=False, _exhausted=False)

    def __iter__(self) -> Any:
        run = self._run
        if run.model.training and torch.is_grad_enabled() and not run.link.ended:
            return self._training_batches(run)
        self._part.epoch, self._part.skip = 0, 0
        return super().__iter__()

    def _training_batches(self, run: "AttachedRun") -> Iterator[Any]:
        state = vars(self)
        if self._began:  # the last epoch's loop was left early
            state.update(_epoch=self._epoch + 1, _batches=0)
        state.update(_began=True, _exhausted=False)
        run.counts_samples()
        self._part.epoch, self._part.skip = self._epoch, self._skipped_items()
        run.between_steps()
        if run.over:
            self._refuse_endless_loop()
            return
        asked_ns = now()
        batches: Iterator[Any] = super().__iter__()
        if isinstance(self.dataset, IterableDataset):
            batches = itertools.islice(batches, self._batches, None)
        for batch in batches:
            run.batch_begins(asked_ns, samples_in(batch))
            state["_batches"] += 1
            yield batch
            run.between_steps()
            if run.over:
                return
            asked_ns = now()
        state["_exhausted"] = True
        run.loop_ends()

    def _refuse_endless_loop(self) -> None:
        """Ends a script that asks for epoch after epoch although the run is over (``while True: for batch in loader``)."""
        vars(self)["_empty"] += 1
        if self._empty > _EMPTY_EPOCHS:
            print("paceline: the run is over, and the script's loop does not end: ended here", file=sys.stderr)
            raise SystemExit(0)

    def _skipped_items(self) -> int:
        """What the sampler leaves out when a resumed run begins in the middle of an epoch."""
        if isinstance(self._part, SampleShare) and self.batch_size is not None:
            return int(self._batches * self.batch_size)
        return int(self._batches)


class _Share:
    """Every p-th item of a sampler, in an order that all workers agree on."""

    def __init__(self, sampler: Any, run: "AttachedRun", even: bool) -> None:
        self._sampler = sampler
        self._rank, self._workers, self._seed, self._even = run.rank, run.workers, run.seed, even
        self.epoch = 0
        self.skip = 0
        if hasattr(sampler, "__len__"):
            _check_length(len(sampler), self._workers)

    def __len__(self) -> int:
        return _length(len(self._sampler), self._rank, self._workers, self._even)

    def _items(self) -> Iterator[Any]:
        if not hasattr(self._sampler, "__len__"):  # perhaps without an end
            return itertools.islice(self._sampler, self._rank + self.skip * self._workers, None, self._workers)
        with _seeded(self._sampler, self._seed, self.epoch):
            items = list(self._sampler)
        if self._even:
            items = items[: len(items) // self._workers * self._workers]
        return iter(items[self._rank :: self._workers][self.skip :])


class SampleShare(_Share, Sampler):  # type: ignore[type-arg]
    """Every p-th index. Batch k of all p workers together is batch k of one worker with the p-fold batch size."""

    def __iter__(self) -> Iterator[Any]:
        return self._items()


class BatchShare(_Share, Sampler):  # type: ignore[type-arg]
    """Every p-th batch of a batch sampler of the script's own."""

    def __iter__(self) -> Iterator[Any]:
        return self._items()


class DatasetShare(Dataset):  # type: ignore[type-arg]
    """Every p-th sample of a dataset."""

    def __init__(self, dataset: Any, rank: Optional[int], workers: int, even: bool) -> None:
        _check_length(len(dataset), workers)
        self.dataset = dataset
        self._rank, self._workers = rank, workers
        self._length = _length(len(dataset), _present(rank), workers, even)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        if not -self._length <= index < self._length:
            raise IndexError(f"sample {index} of {self._length}")
        return self.dataset[_present(self._rank) + index % self._length * self._workers]


class IterableShare(IterableDataset):  # type: ignore[type-arg]
    """Every p-th sample of a stream that all workers read."""

    def __init__(self, dataset: Iterable[Any], rank: Optional[int], workers: int, even: bool) -> None:
        self.dataset = dataset
        self._rank, self._workers, self._even = rank, workers, even
        self.epoch = 0
        self.skip = 0

    def __len__(self) -> int:
        return _length(len(self.dataset), _present(self._rank), self._workers, self._even)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        mine, rank = None, _present(self._rank)
        for index, sample in enumerate(self.dataset):
            place = index % self._workers
            if place == rank:
                mine = sample
                if not self._even:
                    yield mine
            # The others must have got theirs, or the tail would be of different length.
            if self._even and place == self._workers - 1:
                yield mine


def _present(rank: Optional[int]) -> int:
    """A rank, or the one that this script has now."""
    return rank_and_workers()[0] if rank is None else rank


def _length(total: int, rank: int, workers: int, even: bool) -> int:
    return total // workers if even else len(range(rank, total, workers))


def _check_length(total: int, workers: int) -> None:
    if total < workers:
        raise AttachError(f"{total} samples (or batches) cannot be shared by {workers} workers: each needs one")


@contextlib.contextmanager
def _seeded(sampler: Any, seed: int, epoch: int) -> Iterator[None]:
    """Makes a sampler's order the same on every worker, and leaves all generators as they were."""
    number = (seed * 1_000_003 + epoch) % (1 << 63)
    generators = [torch.default_generator]
    own = getattr(sampler, "generator", None)
    if isinstance(own, torch.Generator):
        generators.append(own)
    states = [generator.get_state() for generator in generators]
    python_state = random.getstate()
    numpy_random = getattr(sys.modules.get("numpy"), "random", None)
    numpy_state = numpy_random.get_state() if numpy_random else None
    try:
        for generator in generators:
            generator.manual_seed(number)
        random.seed(number)
        if numpy_random:
            numpy_random.seed(number % (1 << 32))
        yield
    finally:
        for generator, state in zip(generators, states):
            generator.set_state(state)
        random.setstate(python_state)
        if numpy_random:
            numpy_random.set_state(numpy_state)
