"""Shares of loaders and datasets, checkpoints, scripts that are started alone, delegated runs."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from fake_rank import Plan
from test_torch_exchange import TorchTest, free_port, torch

if torch is not None:
    from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, SequentialSampler
    from torch.utils.data import WeightedRandomSampler

    from paceline.attach import AttachError
    from paceline.torch.loader import shard

    class Numbers(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(range(11))


def worker(rank: int, workers: int, seed: int = 3) -> Any:
    """What a loader needs of a run."""
    run: Any = SimpleNamespace(
        rank=rank,
        workers=workers,
        seed=seed,
        over=False,
        model=SimpleNamespace(training=True),
        link=SimpleNamespace(ended=False),
        checkpoint=SimpleNamespace(join=lambda loader: (0, 0)),
        samples=0,
        between_steps=lambda: None,
        counts_samples=lambda: None,
        loop_ends=lambda: None,
    )

    def begins(asked_ns: int, samples: int) -> None:
        run.samples += samples

    run.batch_begins = begins
    return run


class ShareTest(TorchTest):
    def batches(self, loader: Any) -> List[List[int]]:
        return [batch.tolist() for batch in loader]

    def shares(self, workers: int, options: Dict[str, Any], data: Any = range(50), **more: Any) -> List[Any]:
        return [shard(worker(rank, workers), DataLoader(data, **options), more.get("drop_last"), {}) for rank in range(workers)]

    def test_batches_of_all_workers_are_the_batch_of_one(self) -> None:
        (one,) = self.shares(1, {"batch_size": 12, "shuffle": True})
        shares = self.shares(3, {"batch_size": 4, "shuffle": True})
        for _ in range(2):  # two epochs
            whole = self.batches(one)
            parts = [self.batches(share) for share in shares]
            for number in range(4):
                together = [index for part in parts for index in part[number]]
                self.assertEqual(sorted(together), sorted(whole[number]))

    def test_epochs_and_seeds_have_orders_of_their_own(self) -> None:
        loader = DataLoader(range(50), batch_size=50, shuffle=True)
        share = shard(worker(0, 1, 3), loader, None, {})
        first, second = self.batches(share), self.batches(share)
        self.assertNotEqual(first, second)
        self.assertEqual(first, self.batches(shard(worker(0, 1, 3), loader, None, {})))
        self.assertNotEqual(first, self.batches(shard(worker(0, 1, 4), loader, None, {})))
        self.assertEqual(self.batches(shard(worker(0, 1), DataLoader(range(6), 3), None, {})), [[0, 1, 2], [3, 4, 5]])

    def test_workers_have_the_same_number_of_batches(self) -> None:
        # 50 samples, 4 workers: 12 each, 2 are left out; told to drop nothing: 13, 13, 12, 12.
        for options, drop_last, sizes in (
            ({}, None, [[5, 5, 2]] * 4),
            ({}, True, [[5, 5]] * 4),
            ({"drop_last": True}, None, [[5, 5]] * 4),
            ({}, False, [[5, 5, 3], [5, 5, 3], [5, 5, 2], [5, 5, 2]]),
        ):
            with self.subTest(options=options, drop_last=drop_last):
                shares = self.shares(4, {"batch_size": 5, **options}, drop_last=drop_last)
                found = [[len(batch) for batch in self.batches(share)] for share in shares]
                self.assertEqual(found, sizes)
                self.assertEqual([len(share) for share in shares], [len(size) for size in sizes])
                self.assertEqual([share._run.samples for share in shares], [sum(size) for size in sizes])

    def test_a_loader_keeps_its_settings_and_kind(self) -> None:
        class Special(DataLoader):  # type: ignore[type-arg]
            pass

        def collate(batch: List[int]) -> Any:
            return torch.tensor(batch) * 10

        loader = Special(range(8), batch_size=2, collate_fn=collate, num_workers=1, timeout=60, prefetch_factor=3)
        share = shard(worker(1, 2), loader, None, {})
        self.assertIsInstance(share, Special)
        self.assertEqual((share.num_workers, share.timeout, share.prefetch_factor, share.batch_size), (1, 60, 3, 2))
        self.assertEqual(self.batches(share), [[10, 30], [50, 70]])
        self.assertEqual(self.batches(loader), [[0, 10], [20, 30], [40, 50], [60, 70]], "the original is untouched")

    def test_samplers_of_the_script(self) -> None:
        weighted = WeightedRandomSampler([1.0] * 50, 20, generator=torch.Generator().manual_seed(1))
        first, second = self.shares(2, {"batch_size": 5, "sampler": weighted})
        self.assertEqual([len(batch) for batch in self.batches(first)], [5, 5])
        (one,) = self.shares(1, {"batch_size": 10, "sampler": weighted})
        both = self.batches(shard(worker(0, 2), DataLoader(range(50), 5, sampler=weighted), None, {})) + self.batches(second)
        self.assertEqual(sorted(sum(both, [])), sorted(sum(self.batches(one), [])))

        class Own(BatchSampler):
            pass

        shares = self.shares(2, {"batch_sampler": Own(SequentialSampler(range(10)), 2, False)})
        self.assertEqual([self.batches(s) for s in shares], [[[0, 1], [4, 5]], [[2, 3], [6, 7]]])
        shares = self.shares(2, {"batch_size": None}, data=[torch.tensor(n) for n in range(5)])
        self.assertEqual([self.batches(s) for s in shares], [[0, 2], [1, 3]])

    def test_streams_are_read_by_all_and_shared(self) -> None:
        shares = self.shares(3, {"batch_size": 2}, data=Numbers())
        self.assertEqual([self.batches(s) for s in shares], [[[0, 3], [6]], [[1, 4], [7]], [[2, 5], [8]]])
        shares = self.shares(3, {"batch_size": 2}, data=Numbers(), drop_last=False)
        self.assertEqual([self.batches(s) for s in shares], [[[0, 3], [6, 9]], [[1, 4], [7, 10]], [[2, 5], [8]]])

    def test_datasets_become_views_or_loaders(self) -> None:
        view = shard(worker(1, 3), list(range(10)), None, {})
        self.assertEqual([view[index] for index in range(len(view))], [1, 4, 7])
        self.assertEqual(view[-1], 7)
        with self.assertRaises(IndexError):
            view[3]
        loader = shard(worker(0, 2), list(range(8)), None, {"batch_size": 2})
        self.assertEqual(self.batches(loader), [[0, 2], [4, 6]])

    def test_what_cannot_be_shared_says_why(self) -> None:
        loader = DataLoader(range(50), sampler=DistributedSampler(range(50), 2, 0))  # type: ignore[arg-type]
        for data, reason in ((loader, "DistributedSampler"), (DataLoader(range(2)), "2 samples"), (shard(worker(0, 1), DataLoader(range(2)), None, {}), "a share already")):
            with self.assertRaisesRegex(AttachError, reason):
                shard(worker(0, 3), data, None, {})
        with self.assertRaisesRegex(TypeError, "a DataLoader or a Dataset is possible, not int"):
            shard(worker(0, 2), 5, None, {})
        with self.assertRaisesRegex(TypeError, "batch_size belong to the loader"):
            shard(worker(0, 2), DataLoader(range(4)), None, {"batch_size": 2})

    def test_a_loader_ends_when_the_run_is_over(self) -> None:
        run = worker(0, 1)
        loader = shard(run, DataLoader(range(8)), None, {})
        found = []
        for batch in loader:
            found.append(int(batch))
            run.over = len(found) == 3
        self.assertEqual(found, [0, 1, 2])
        with self.assertRaises(SystemExit) as ended:
            while True:
                for batch in loader:
                    self.fail("a batch after the end")
        self.assertEqual(ended.exception.code, 0)

    def test_an_evaluation_neither_counts_nor_ends(self) -> None:
        run = worker(0, 2)
        run.over = True
        loader = shard(run, DataLoader(range(8)), None, {})
        with torch.no_grad():
            self.assertEqual(len(self.batches(loader)), 4)
        run.model.training = False
        self.assertEqual(len(self.batches(loader)), 4)
        self.assertEqual(run.samples, 0)


RESUMABLE = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
run = pace.attach(model, optimizer)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
model.register_buffer("seen", torch.zeros(()))
run.keep(scheduler=scheduler)
loader = run.shard(DataLoader(data, batch_size=60, shuffle=True))
for epoch in run.epochs(3):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        print(run.step, epoch, round(x.sum().item(), 4), optimizer.param_groups[0]["lr"])
    scheduler.step()
"""


class CheckpointTest(TorchTest):
    def test_a_resumed_run_goes_on_with_the_next_batch(self) -> None:
        # Four batches an epoch and worker. Saved in the middle and at the end of an epoch.
        for gives, takes in (("gradients", "gradients"), ("updates", "parameters"), ("parameters", "parameters")):
            for save_at in (1, 3, 5):
                with self.subTest(gives=gives, save_at=save_at):
                    text = RESUMABLE.replace('model.register_buffer("seen", torch.zeros(()))\n', "")
                    whole = self.script(text, Plan(gives=gives, takes=takes, save_at=save_at))
                    self.assertEqual(whole[0].kept_step, save_at + 1)
                    again = self.script(
                        text,
                        Plan(
                            gives=gives,
                            takes=takes,
                            start=save_at + 1,
                            kept=[rank.kept or b"" for rank in whole],
                            start_parameters=whole[0].kept_parameters,
                        ),
                    )
                    self.assertEqual(again[0].final, whole[0].final)
                    for before, after in zip(whole, again):
                        self.assertEqual(after.output.splitlines(), before.output.splitlines()[save_at + 1 :])

    def test_where_nothing_is_exchanged_the_script_saves_by_itself(self) -> None:
        text = RESUMABLE.replace('model.register_buffer("seen", torch.zeros(()))\n', "")
        nothing: Dict[str, Any] = {"workers": 1, "gives": "nothing", "takes": "nothing", "until": 12}
        (whole,) = self.script(text, Plan(**nothing, saves_every=5))
        self.assertEqual((whole.kept_step, len(whole.accounts)), (10, 12))
        (again,) = self.script(
            text, Plan(**nothing, start=10, kept=[whole.kept or b""], start_parameters=whole.kept_parameters)
        )
        self.assertEqual(again.final, whole.final)
        self.assertEqual([account.step for account in again.accounts], [10, 11])

    def test_what_has_no_state_cannot_be_kept(self) -> None:
        ranks = self.script("pace.attach(model).keep(thing=3)", Plan(workers=1), expect_end=False)
        self.assertIn("keep(thing=…): int has no state_dict and load_state_dict", ranks[0].errors)


class EndTest(TorchTest):
    TEXT = """
        model = nn.Sequential(nn.BatchNorm1d(6), model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = pace.attach(model, optimizer)
        loader = run.shard(DataLoader(data, batch_size=8, shuffle=True))
        for epoch in run.epochs(3):
            for x, y in loader:
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
        run.report(batches=model[0].num_batches_tracked)
        for _ in range(2):   # a loop that does not care
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        """

    def test_nothing_changes_after_the_end(self) -> None:
        for gives, takes in (("gradients", "gradients"), ("gradients", "parameters"), ("updates", "parameters"), ("parameters", "parameters")):
            with self.subTest(gives=gives, takes=takes):
                told = self.script(self.TEXT, Plan(gives=gives, takes=takes, steps=5, until=5))
                surprised = self.script(self.TEXT, Plan(gives=gives, takes=takes, steps=5))
                self.assert_replicas(told + surprised)
                self.assertEqual([told[0].reports[0]["batches"], surprised[0].reports[0]["batches"]], [5, 6])


class AloneTest(TorchTest):
    def test_a_script_that_is_started_alone_does_not_notice(self) -> None:
        import paceline.torch as pace

        model = torch.nn.Linear(2, 1)
        backward = torch.autograd.backward
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = pace.attach(model, optimizer)
        loader = DataLoader(range(4))
        self.assertIs(run.shard(loader), loader)
        self.assertIs(pace.shard(loader.dataset), loader.dataset)
        self.assertEqual(len(run.shard(range(8), batch_size=2)), 4)
        self.assertEqual((run.rank, run.workers, run.step, run.over), (0, 1, 0, False))
        self.assertEqual((list(run.epochs(3)), list(run.steps(2))), ([0, 1, 2], [0, 1]))
        run.report(loss=torch.tensor(1.0), accuracy=0.5)
        with run.no_sync():
            pass
        run.keep(scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1))
        run.leave()
        self.assertIs(torch.autograd.backward, backward)
        with self.assertRaises(TypeError):
            run.report(loss="low")


class DelegatedTest(TorchTest):
    TEXT = """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        run = pace.attach(model, optimizer)
        calls = []
        model.register_forward_hook(lambda *_: calls.append(1))
        loader = run.shard(DataLoader(data, batch_size=8, shuffle=True))
        for epoch in run.epochs(100):
            for x, y in loader:
                half = len(x) // 2
                optimizer.zero_grad()
                with run.no_sync():
                    (F.mse_loss(model(x[:half]), y[:half]) / 2).backward()
                (F.mse_loss(model(x[half:]), y[half:]) / 2).backward()
                optimizer.step()
                if run.step == 20:
                    run.report(loss=1.0)
        # Where gradients are exchanged, one step more shows that the run is over.
        assert len(calls) - 2 * run.step in (0, 2), (len(calls), run.step)
        """

    def plan(self, **more: Any) -> Plan:
        delegated = {"backend": "gloo", "address": "127.0.0.1", "port": free_port()}
        return Plan(workers=2, gives="nothing", takes="nothing", delegated=delegated, **more)

    def test_ddp_computes_what_an_exchange_of_gradients_does(self) -> None:
        ours = self.script(self.TEXT, Plan(workers=2, steps=25))
        ddp = self.script(self.TEXT, self.plan(until=25))
        self.assert_replicas(ddp)
        self.assertEqual([account.step for account in ddp[0].accounts], list(range(25)))
        self.assert_close(ddp[0], ours[0], 1e-6)

    def test_workers_end_together_when_the_run_is_over(self) -> None:
        ddp = self.script(self.TEXT, self.plan(over_at_report=True))
        self.assert_replicas(ddp)
        self.assertEqual(len(ddp[0].accounts), len(ddp[1].accounts))
        self.assertLess(len(ddp[0].accounts), 64)

    def test_a_model_that_is_never_called_is_refused(self) -> None:
        text = self.TEXT.replace("model(x", "nn.Sequential.forward(model, x").replace("with run.no_sync():", "if True:")
        ranks = self.script(text, self.plan(until=25), expect_end=False)
        self.assertIn("call model(…), not its parts", ranks[0].errors + ranks[1].errors)


if __name__ == "__main__":
    unittest.main()
