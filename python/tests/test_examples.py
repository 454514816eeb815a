"""The scripts of ``examples/pytorch`` as workers, those of Hugging Face's and Lightning's trainers among them."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, List

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from fake_rank import PACKAGE, Plan, Rank, run
from test_torch_exchange import TorchTest, free_port, torch

EXAMPLES = PACKAGE.parent / "examples" / "pytorch"

EXCHANGES = (
    ("gradients", "gradients"),
    ("updates", "parameters"),
    ("parameters", "parameters"),
)


def importable(name: str) -> bool:
    if torch is None:
        return False
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


class ExamplesTest(TorchTest):
    def example(self, name: str, plan: Plan, *arguments: str) -> List[Rank]:
        return run(plan, [str(EXAMPLES / name), *arguments])

    def delegated(self, **more: Any) -> Plan:
        delegated = {"backend": "gloo", "address": "127.0.0.1", "port": free_port()}
        return Plan(gives="nothing", takes="nothing", delegated=delegated, **more)

    def check(self, name: str, steps: int, *arguments: str) -> None:
        """Ends after so many steps, with equal replicas, along every exchange; DDP computes the same."""
        first = b""
        for gives, takes in EXCHANGES:
            with self.subTest(gives=gives, takes=takes):
                ranks = self.example(name, Plan(gives=gives, takes=takes, steps=steps), *arguments)
                self.assertEqual([account.step for account in ranks[0].accounts], list(range(steps + 1)))
                self.assert_replicas(ranks)
                first = first or ranks[0].final
        with self.subTest(delegated="gloo"):
            ranks = self.example(name, self.delegated(until=steps), *arguments)
            self.assertEqual([account.step for account in ranks[0].accounts], list(range(steps)))
            self.assert_replicas(ranks)
            ours = torch.frombuffer(bytearray(first), dtype=torch.float32)
            self.assertLess(float((self.floats(ranks[0]) - ours).norm() / ours.norm()), 1e-4)

    def test_mnist(self) -> None:
        self.check("mnist.py", 5, "--epochs", "1")

    def test_images(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.check("images.py", 4, "--epochs", "1", "--data", folder)

    def test_gpt(self) -> None:
        self.check("gpt.py", 4, "--steps", "9")

    @unittest.skipUnless(importable("transformers") and importable("accelerate"), "transformers cannot be imported")
    def test_hugging_face_trainer(self) -> None:
        self.check("trainer.py", 4, "--epochs", "1", "--accumulate", "2")
        ranks = self.example("trainer.py", Plan(), "--epochs", "1")
        self.assertEqual(len(ranks[0].accounts), 32)  # 2,000 samples, 2 workers, batches of 32
        self.assertEqual(sum(account.samples for account in ranks[0].accounts), 1000)
        self.assertEqual(ranks[0].reports[-1]["step"], 32)
        self.assertIn("accuracy", ranks[0].reports[-1])

    @unittest.skipUnless(importable("lightning"), "lightning cannot be imported")
    def test_lightning_trainer(self) -> None:
        self.check("lightning_mnist.py", 4, "--epochs", "1", "--accumulate", "2")
        ranks = self.example("lightning_mnist.py", Plan(), "--epochs", "1")
        self.assertEqual(len(ranks[0].accounts), 47)  # 6,000 samples, 2 workers, batches of 64
        self.assertEqual(sum(account.samples for account in ranks[0].accounts), 3000)
        self.assertIn("accuracy", ranks[0].reports[-1])

    def test_an_example_runs_alone(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1"}
        environment.pop("PACELINE_ATTACH", None)
        command = [sys.executable, str(EXAMPLES / "mnist.py"), "--epochs", "1", "--dry-run"]
        told = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertIn("test: loss", told.stdout)


class MarkedLinesTest(unittest.TestCase):
    def test_at_most_six_lines_of_an_example_belong_to_paceline(self) -> None:
        for path in EXAMPLES.glob("*.py"):
            lines = path.read_text().splitlines()
            marked = [line for line in lines if line.endswith("# paceline")]
            self.assertLessEqual(len(marked), 6, path.name)
            unmarked = [line for line in lines if "pace." in line and line not in marked]
            self.assertEqual(unmarked, [], path.name)


if __name__ == "__main__":
    unittest.main()
