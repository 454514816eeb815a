"""What PyTorch scripts compute when they are attached, against torch itself."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path
from typing import Any, List

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

try:
    import torch
    import torch.utils.checkpoint

    torch.set_num_threads(1)
except ImportError:
    torch = None  # type: ignore[assignment]

from fake_rank import Plan, Rank, run

PRELUDE = """
import sys, os, math, torch
from torch import nn
import torch.nn.functional as F
import paceline.torch as pace
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(5)
data = TensorDataset(torch.randn(480, 6), torch.randn(480, 3))
model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
"""

LOOP = """
run = pace.attach(model, optimizer)
loader = run.shard(DataLoader(data, batch_size=BATCH, shuffle=True))
for epoch in run.epochs(100):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
"""


@unittest.skipIf(torch is None, "torch cannot be imported")
class TorchTest(unittest.TestCase):
    maxDiff = 2000

    def script(self, text: str, plan: Plan, **options: Any) -> List[Rank]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "script.py"
            path.write_text(PRELUDE + textwrap.dedent(text))
            return run(plan, [str(path)], **options)

    def floats(self, rank: Rank) -> "torch.Tensor":
        return torch.frombuffer(bytearray(rank.final), dtype=torch.float32)

    def assert_replicas(self, ranks: List[Rank]) -> None:
        for rank in ranks[1:]:
            self.assertEqual(rank.final, ranks[0].final, f"rank {rank.number} differs from rank 0")

    def assert_close(self, found: Rank, expected: Rank, relative: float) -> None:
        difference = (self.floats(found) - self.floats(expected)).norm() / self.floats(expected).norm()
        self.assertLess(float(difference), relative)


class GradientsTest(TorchTest):
    def against_one_worker(self, optimizer: str, relative: float, workers: int, **plan: Any) -> List[Rank]:
        text = f"optimizer = {optimizer}\n" + LOOP
        one = self.script(f"BATCH = {4 * workers}\n" + text, Plan(workers=1, steps=50))
        many = self.script("BATCH = 4\n" + text, Plan(workers=workers, steps=50, **plan))
        self.assert_replicas(many)
        self.assert_close(many[0], one[0], relative)
        self.assertEqual([account.step for account in many[0].accounts], list(range(51)))
        return many

    def test_sgd_with_momentum_equals_one_worker_with_the_whole_batch(self) -> None:
        for workers in (2, 3, 4):
            self.against_one_worker("torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)", 1e-5, workers)

    def test_adam_equals_one_worker_with_the_whole_batch(self) -> None:
        for workers in (2, 3, 4):
            self.against_one_worker("torch.optim.Adam(model.parameters(), lr=0.01)", 1e-3, workers)

    def test_gradients_may_come_back_in_the_parameter_memory(self) -> None:
        sgd = "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"
        self.against_one_worker(sgd, 1e-5, 2, takes="gradients-from-parameters")



DDP = """
import torch.distributed as dist
rank, port = int(os.environ["PACELINE_RANK"]), int(os.environ["PORT"])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
"""


class DistributedDataParallelTest(TorchTest):
    """Two workers with SGD, bit by bit against DDP over gloo."""

    def test_two_workers_with_sgd_are_bit_identical_to_ddp(self) -> None:
        body = """
            batches = [torch.arange(start, start + 8) for start in range(0, 480, 8)]
            for step in range(40):
                rows = batches[(2 * step + rank) % len(batches)]
                x, y = data[rows]
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
        """
        optimizer = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)\n"
        ranks = self.script(
            optimizer + "run = pace.attach(model, optimizer)\nrank = run.rank\n" + textwrap.dedent(body),
            Plan(workers=2, bucket=100),
        )
        self.assert_replicas(ranks)
        told = self.script(
            DDP
            + optimizer
            + "whole = model\nmodel = nn.parallel.DistributedDataParallel(model)\n"
            + textwrap.dedent(body)
            + textwrap.dedent(
                """
                # As the fake rank lays tensors out: from the last to the first.
                numbers = torch.cat([p.detach().flatten() for p in reversed(list(whole.parameters()))])
                print(numbers.numpy().tobytes().hex())
                dist.destroy_process_group()
                run = pace.attach(nn.Linear(1, 1))
                """
            ),
            Plan(workers=2, gives="nothing", takes="nothing"),
            environment={"PORT": str(free_port())},
        )
        self.assertEqual(told[0].output.split()[-1], ranks[0].final.hex())


class WeightsTest(TorchTest):
    SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nBATCH = 4\n"

    def test_mean_updates_of_sgd_equal_one_worker(self) -> None:
        one = self.script(self.SGD.replace("4", "8") + LOOP, Plan(workers=1, steps=30))
        for gives in ("updates", "parameters"):
            with self.subTest(gives=gives):
                ranks = self.script(self.SGD + LOOP, Plan(workers=2, gives=gives, takes="parameters", steps=30))
                self.assert_replicas(ranks)
                self.assert_close(ranks[0], one[0], 1e-5)

    def test_servers_run_the_optimizer_with_the_schedule_of_the_script(self) -> None:
        loop = LOOP.replace("optimizer.step()", "optimizer.step(); scheduler.step()")
        for kind in (
            "torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)",
            "torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)",
        ):
            with self.subTest(kind=kind):
                text = f"""
groups = [{{"params": model[0].parameters(), "lr": 0.02}}, {{"params": model[2].parameters()}}]
optimizer = {kind}
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
"""
                one = self.script("BATCH = 8\n" + text + loop, Plan(workers=1, steps=30))
                many = self.script("BATCH = 4\n" + text + loop, Plan(workers=2, takes="parameters", steps=30))
                self.assert_replicas(many)
                self.assert_close(many[0], one[0], 1e-4)
                self.assertAlmostEqual(many[0].accounts[9].factor or 0, 0.1)

    def test_clipping_is_refused_where_servers_have_the_gradients_already(self) -> None:
        loop = LOOP.replace("optimizer.step()", "nn.utils.clip_grad_norm_(model.parameters(), 0.1); optimizer.step()")
        ranks = self.script(self.SGD + loop, Plan(workers=1, takes="parameters"), expect_end=False)
        assert ranks[0].fault is not None
        self.assertIn("the gradients were changed between backward and step", ranks[0].fault["message"])

    def test_a_scaler_is_refused_where_servers_have_the_gradients_already(self) -> None:
        if not hasattr(torch.amp, "GradScaler"):  # before torch 2.3 there is none for the CPU
            self.skipTest("this torch has no GradScaler for the CPU")
        loop = LOOP.replace("loss.backward()", "scaler.scale(loss).backward()")
        loop = loop.replace("optimizer.step()", "scaler.step(optimizer); scaler.update()")
        for enabled in (True, False):
            text = f'scaler = torch.amp.GradScaler("cpu", enabled={enabled})\n'
            plan = Plan(workers=1, takes="parameters", steps=3)
            ranks = self.script(self.SGD + text + loop, plan, expect_end=not enabled)
            if enabled:
                assert ranks[0].fault is not None
                self.assertIn("a GradScaler unscales gradients when the servers have them", ranks[0].fault["message"])

    def test_an_optimizer_that_servers_do_not_know_is_refused(self) -> None:
        text = "optimizer = torch.optim.Adadelta(model.parameters())\nBATCH = 4\n" + LOOP
        ranks = self.script(text, Plan(workers=1, takes="parameters"), expect_end=False)
        assert ranks[0].fault is not None
        self.assertIn("SGD, Adam and AdamW, not Adadelta: use --apply worker", ranks[0].fault["message"])

    def test_a_step_that_a_scaler_skips_is_closed(self) -> None:
        if not hasattr(torch.amp, "GradScaler"):  # before torch 2.3 there is none for the CPU
            self.skipTest("this torch has no GradScaler for the CPU")
        loop = LOOP.replace("loss.backward()", "scaler.scale(loss * bad(run.step)).backward()")
        loop = loop.replace("optimizer.step()", "scaler.step(optimizer); scaler.update()")
        text = """
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
bad = lambda step: float("inf") if step == 3 else 1.0
"""
        for gives, takes in (("gradients", "gradients"), ("updates", "parameters"), ("parameters", "parameters")):
            with self.subTest(gives=gives):
                ranks = self.script(self.SGD + text + loop, Plan(workers=2, gives=gives, takes=takes, steps=10))
                self.assert_replicas(ranks)
                self.assertEqual([account.step for account in ranks[0].accounts], list(range(11)))
                self.assertTrue(bool(self.floats(ranks[0]).isfinite().all()))


class TrapsTest(TorchTest):
    """Things in scripts that break naive exchanges: two workers against one with the whole batch."""

    def against_one_worker(self, text: str, **plan: Any) -> List[Rank]:
        one = self.script("WORKERS = 1\n" + textwrap.dedent(text), Plan(workers=1, steps=20, **plan))
        two = self.script("WORKERS = 2\n" + textwrap.dedent(text), Plan(workers=2, steps=20, **plan))
        self.assert_replicas(two)
        self.assert_close(two[0], one[0], 1e-5)
        return two

    def loop(self, inside: str, before: str = "", step: str = "optimizer.step()") -> str:
        return (
            textwrap.dedent(before)
            + """
optimizer = globals().get("optimizer") or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
run = pace.attach(model, optimizer)
loader = run.shard(DataLoader(data, batch_size=8 // WORKERS, shuffle=True))
for epoch in run.epochs(10):
    for x, y in loader:
        optimizer.zero_grad(**ZERO) if "ZERO" in globals() else optimizer.zero_grad()
"""
            + textwrap.indent(textwrap.dedent(inside), "        ")
            + f"\n        {step}\n"
        )

    def test_unused_parameters(self) -> None:
        # `spare` is used in no step, `rare` by rank 1 only: decay must move `rare` alone.
        text = self.loop(
            """
            loss = F.mse_loss(model.body(x), y)
            if run.rank == 1:
                loss = loss + model.rare(x).mean()
            loss.backward()
            """,
            """
            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.body, self.rare, self.spare = nn.Linear(6, 3), nn.Linear(6, 1), nn.Linear(2, 1)
            model = Model()
            before = [p.detach().clone() for p in model.parameters()]
            """,
        ).replace("WORKERS", "2") + textwrap.dedent(
            """
            moved = [bool((p != q).any()) for p, q in zip(model.parameters(), before)]
            assert moved == [True, True, True, True, False, False], moved
            assert model.spare.weight.grad is None
            """
        )
        for used in (True, False):
            for takes in ("gradients", "gradients-from-parameters"):
                with self.subTest(used=used, takes=takes):
                    self.assert_replicas(self.script(text, Plan(workers=2, steps=20, used=used, takes=takes)))

    def test_accumulation_and_clipping(self) -> None:
        self.against_one_worker(
            self.loop(
                """
                half = len(x) // 2
                with run.no_sync():
                    (F.mse_loss(model(x[:half]), y[:half]) / 2).backward()
                (F.mse_loss(model(x[half:]), y[half:]) / 2).backward()
                assert nn.utils.clip_grad_norm_(model.parameters(), 0.05) > 0.05
                """
            )
        )

    def test_two_backwards_before_a_step(self) -> None:
        two = self.against_one_worker(
            self.loop("out = model(x); F.mse_loss(out, y).backward(retain_graph=True); out.pow(2).mean().backward()")
        )
        self.assertEqual(len(two[0].accounts), 21)

    def test_two_backwards_before_a_step_exchange_weights_once(self) -> None:
        self.against_one_worker(
            self.loop(
                "out = model(x); F.mse_loss(out, y).backward(retain_graph=True); out.pow(2).mean().backward()",
                "optimizer = torch.optim.SGD(model.parameters(), lr=0.05)",
            ),
            gives="updates",
            takes="parameters",
        )

    def test_gradients_that_stay_zeros(self) -> None:
        self.against_one_worker("ZERO = {'set_to_none': False}\n" + self.loop("F.mse_loss(model(x), y).backward()"))

    def test_checkpointing_and_tied_weights(self) -> None:
        for reentrant in (True, False):
            with self.subTest(reentrant=reentrant):
                two = self.against_one_worker(
                    self.loop(
                        "F.mse_loss(model(x), y).backward()",
                        f"""
                        from torch.utils.checkpoint import checkpoint
                        class Model(nn.Module):
                            def __init__(self):
                                super().__init__()
                                self.first, self.inner, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
                                self.tied = nn.Linear(6, 6)
                                self.tied.weight = self.first.weight
                            def forward(self, x):
                                x = torch.tanh(self.first(x))
                                for _ in range(2):   # the same tensors twice, each in a backward of its own
                                    x = checkpoint(lambda x: torch.tanh(self.inner(x)), x, use_reentrant={reentrant})
                                return self.last(torch.tanh(self.tied(x)))
                        model = Model()
                        """,
                    ),
                    bucket=40,
                )
                # The first backward shows the order; from the second on gradients travel early, unless they may change.
                self.assertEqual({len(tickets) > 1 for tickets in two[0].tickets[1:]}, {not reentrant})

    def test_a_gradient_that_changes_after_it_was_sent_is_refused(self) -> None:
        # From step 3 on a part is computed again in a backward of its own, which the first backward did not show.
        text = self.loop(
            "F.mse_loss(model(x, run.step >= 3), y).backward()",
            """
            from torch.utils.checkpoint import checkpoint
            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.first, self.shared = nn.Linear(6, 6), nn.Linear(6, 6)
                def forward(self, x, again):
                    x = torch.tanh(self.first(x))
                    inner = lambda x: torch.tanh(self.shared(x))
                    x = checkpoint(inner, x, use_reentrant=True) if again else inner(x)
                    return self.shared(x)[:, :3]
            model = Model()
            """,
        )
        ranks = self.script("WORKERS = 1\n" + text, Plan(workers=1, bucket=40), expect_end=False)
        assert ranks[0].fault is not None
        self.assertIn("got a further gradient after it had been sent", ranks[0].fault["message"])
        self.against_one_worker(text.replace("attach(model, optimizer)", "attach(model, optimizer, overlap=False)"), bucket=40)

    def test_channels_last_and_frozen_parameters(self) -> None:
        self.against_one_worker(
            self.loop(
                "F.mse_loss(model(x), y).backward()",
                """
                model = nn.Sequential(
                    nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2, padding=1), nn.Conv2d(4, 4, 2), nn.Flatten(),
                    nn.Linear(24, 5), nn.Linear(5, 3),
                ).to(memory_format=torch.channels_last)
                assert not model[2].weight.is_contiguous()
                model[4].weight.requires_grad_(False)
                """,
            )
        )

    def test_half_precision_parameters_travel_as_float32(self) -> None:
        ranks = self.script(
            "WORKERS = 2\n"
            + self.loop(
                """
                F.mse_loss(model(x.bfloat16()).float(), y).backward()
                assert model[0].weight.grad.dtype == torch.bfloat16
                """,
                "model = model.bfloat16()",
            ),
            Plan(workers=2, steps=5),
        )
        self.assert_replicas(ranks)

    def test_loader_workers_do_not_disturb(self) -> None:
        text = self.loop("F.mse_loss(model(x), y).backward()").replace("shuffle=True", "shuffle=True, num_workers=2")
        self.against_one_worker(text)

    def test_an_optimizer_that_was_not_passed_is_found(self) -> None:
        text = self.loop("F.mse_loss(model(x), y).backward()", "optimizer = torch.optim.SGD(model.parameters(), lr=0.05)")
        text = text.replace("pace.attach(model, optimizer)", "pace.attach(model)")
        self.against_one_worker(text, gives="updates", takes="parameters")

    def test_a_closure_in_step(self) -> None:
        text = self.loop("", step="optimizer.step(closure)").replace(
            "loader = run", "def closure():\n    loss = F.mse_loss(model(x), y)\n    loss.backward()\n    return loss\nloader = run"
        )
        for gives, takes in (("gradients", "gradients"), ("gradients", "parameters"), ("parameters", "parameters")):
            with self.subTest(gives=gives, takes=takes):
                before = "optimizer = torch.optim.SGD(model.parameters(), lr=0.05)\n"
                self.against_one_worker(before + text, gives=gives, takes=takes)

    def test_what_cannot_be_exchanged_is_refused_with_the_reason(self) -> None:
        for model, reason in (
            ("nn.Embedding(4, 3, sparse=True)", "makes sparse gradients"),
            ("nn.Linear(2, 2, dtype=torch.complex64)", "parameter `weight` is complex"),
            ("nn.LazyLinear(2)", "has no shape yet"),
            ("nn.ReLU()", "nothing to train"),
        ):
            with self.subTest(model=model):
                ranks = self.script(f"pace.attach({model})", Plan(workers=1), expect_end=False)
                self.assertIn(reason, ranks[0].errors)
        ranks = self.script("pace.attach(model, torch.optim.SGD([nn.Parameter(data[0][0])], lr=0.1))", Plan(workers=1), expect_end=False)
        self.assertIn("the optimizer trains 1 tensors that the model does not have", ranks[0].errors)

    def test_compiled_models(self) -> None:
        os.environ["FRESH_PROCESS"] = "1"  # the compiler's threads do not survive a fork
        self.addCleanup(os.environ.pop, "FRESH_PROCESS")
        text = self.loop("F.mse_loss(compiled(x), y).backward()").replace(
            "loader = run", "compiled = torch.compile(model, backend='aot_eager')\nloader = run"
        )
        self.against_one_worker(text)


class AccountsTest(TorchTest):
    def test_accounts_tell_times_samples_and_losses(self) -> None:
        text = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nBATCH = 4\n" + LOOP
        for gives, takes in (("gradients", "gradients"), ("parameters", "parameters"), ("nothing", "nothing")):
            with self.subTest(gives=gives):
                times = gives != "nothing"
                plan = Plan(workers=2, gives=gives, takes=takes, steps=12, times=times, until=12)
                for rank in self.script(text, plan):
                    accounts = rank.accounts[:12]
                    self.assertEqual([account.step for account in accounts], list(range(12)))
                    self.assertEqual({account.samples for account in accounts}, {4})
                    for account in accounts[1:]:
                        self.assertGreater(account.loss, 0)
                        for spent in (account.data_ns, account.forward_ns, account.backward_ns, account.update_ns):
                            self.assertGreater(spent, 0)
                        if times:
                            self.assertGreater(account.staging_ns, 0)
                            self.assertEqual(len(account.times_us), 4)
                            self.assertLess(max(account.times_us), 10**7)

    def test_without_a_loader_the_input_tells_the_samples(self) -> None:
        text = """
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            run = pace.attach(model, optimizer)
            for step in run.steps(1000):
                x, y = data[torch.randint(0, 480, (7,))]
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
            assert run.over and run.step == 12, run.step
            run.report(loss=torch.tensor(0.5), accuracy=1, odd=float("inf"))
            """
        for plan in (Plan(workers=2, steps=12), Plan(workers=1, gives="nothing", takes="nothing", until=12)):
            for rank in self.script(text, plan):
                self.assertEqual({account.samples for account in rank.accounts[:12]}, {7})
                self.assertEqual(rank.reports, [{"loss": 0.5, "accuracy": 1, "odd": None, "step": 12}])

    def test_reports_of_a_wrong_type_say_what_is_possible(self) -> None:
        text = """
            run = pace.attach(model)
            for value in ("high", torch.zeros(3), None):
                try:
                    run.report(loss=value)
                except TypeError as error:
                    print(error)
            """
        (rank,) = self.script(text, Plan(workers=1))
        self.assertEqual(rank.output.count("a number or a tensor of one element is possible"), 3)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    unittest.main()
