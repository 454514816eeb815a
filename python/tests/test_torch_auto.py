"""Scripts that say nothing of Paceline, as workers."""

from __future__ import annotations

import sys
import tempfile
import textwrap
import unittest
from pathlib import Path
from typing import Any, List

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from fake_rank import Plan, Rank, run
from test_torch_exchange import LOOP, TorchTest

# The same training as LOOP, without a word of Paceline.
UNCHANGED = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(5)
data = TensorDataset(torch.randn(480, 6), torch.randn(480, 3))
model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
"""
TRAINS = """
loader = DataLoader(data, batch_size=4, shuffle=True)
for epoch in range(100):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
"""
SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n"


class AutoTest(TorchTest):
    def auto(self, text: str, plan: Plan, **options: Any) -> List[Rank]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "script.py"
            path.write_text(UNCHANGED + textwrap.dedent(text))
            # As `python -m paceline.torch.auto SCRIPT`, in a fork that has imported torch already.
            start = Path(folder) / "start.py"
            start.write_text(f"import sys\nsys.argv = ['auto', {str(path)!r}]\nimport paceline.torch.auto as auto\nauto.main()\n")
            return run(plan, [str(start)], **options)

    def refused(self, text: str, workers: int = 2) -> str:
        ranks = self.auto(text, Plan(workers=workers, steps=4), expect_end=False)
        self.assertNotEqual(ranks[0].code, 0)
        return (ranks[0].fault or {}).get("message", "") + ranks[0].errors

    def test_an_unchanged_script_trains_as_one_with_the_lines(self) -> None:
        for workers in (1, 2):
            found = self.auto(SGD + TRAINS, Plan(workers=workers, steps=20))
            told = self.script("BATCH = 4\n" + SGD + LOOP, Plan(workers=workers, steps=20))
            self.assert_replicas(found)
            self.assertEqual(found[0].final, told[0].final, f"{workers} workers")
            self.assertEqual([account.samples for account in found[0].accounts], [4] * 21)

    def test_workers_share_an_epoch_and_evaluate_on_the_whole_test_set(self) -> None:
        text = """
            loader, test = DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=8)
            print("batches", len(loader), len(test))
            seen = 0
            for x, y in loader:
                seen += len(x)
                optimizer.zero_grad(); F.mse_loss(model(x), y).backward(); optimizer.step()
            model.eval()
            with torch.no_grad():
                print("seen", seen, sum(len(x) for x, _ in test))
        """
        ranks = self.auto(SGD + textwrap.dedent(text), Plan(workers=2))
        for rank in ranks:
            self.assertIn("batches 60 60", rank.output)
            self.assertIn("seen 240 480", rank.output)

    def test_what_is_not_understood_is_refused_with_the_reason(self) -> None:
        two = SGD + "other = torch.optim.Adam(model.parameters())\n"
        parts = "a, b = model[:1], model[1:]\n" + SGD
        cases = [
            (two + TRAINS, "2 optimizers"),
            (SGD + TRAINS.replace("shuffle=True", "shuffle=False"), "shuffle=True"),
            (SGD + TRAINS.replace("for x, y in loader", "for x, y in [data[:8]]"), "no DataLoader hands over"),
            (parts + TRAINS.replace("model(x)", "b(a(x))"), "no single module"),
            ("optimizer = torch.optim.LBFGS(model.parameters())\n" + TRAINS, "LBFGS"),
            ("import torch.distributed as d\nd.init_process_group('gloo')\n", "process group of its own"),
            ("print('nothing')\n", "made no torch.optim.Optimizer"),
            (SGD, "without a forward pass"),
        ]
        for text, reason in cases:
            self.assertIn(reason, self.refused(text))


if __name__ == "__main__":
    unittest.main()
