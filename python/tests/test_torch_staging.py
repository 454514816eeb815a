"""Copies beside what a device computes: their order, with a device that is not there."""

from __future__ import annotations

import sys
import textwrap
import unittest
from pathlib import Path
from typing import Any, List

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from fake_device import FakeDevice
from fake_rank import Plan
from test_torch_exchange import LOOP, TorchTest, torch

FAKE = """
import sys
sys.path[:0] = [{tests!r}]
from fake_device import FakeDevice
import paceline.torch.staging as staging
staging.device_of = lambda parameters: FakeDevice({patience})
"""


def fake(patience: int) -> str:
    return FAKE.format(tests=str(Path(__file__).resolve().parent), patience=patience)


@unittest.skipIf(torch is None, "torch cannot be imported")
class StagingTest(unittest.TestCase):
    def test_numbers_arrive_in_order_and_are_told_of_once_and_not_before(self) -> None:
        from paceline.torch.staging import Staging

        device = FakeDevice(patience=2)
        staging = Staging(device, [(0, 3), (3, 3), (6, 3)], [torch.zeros(3)] * 3)
        memory, buffer = torch.zeros(9), staging.buffer()
        gradients = [torch.full((3,), float(n + 1)) for n in range(3)]
        staging.put(memory, buffer, [1, 0], [gradients[1], gradients[0]], 0.5)
        staging.put(memory, buffer, [2], [gradients[2]], 0.5)
        self.assertTrue(staging.busy)
        self.assertEqual(staging.arrived(), [], "nothing has been copied yet")
        self.assertFalse(bool(memory.any()))
        self.assertEqual(staging.arrived(), [1, 0])
        self.assertEqual(memory.tolist(), [0.5] * 3 + [1.0] * 3 + [0.0] * 3)
        self.assertEqual(staging.wait(), [2])
        self.assertEqual(memory.tolist()[6:], [1.5] * 3)
        self.assertEqual((staging.arrived(), staging.wait(), staging.busy), ([], [], False))
        # A copy for each stretch of a bucket, behind what was computed, and an event behind it.
        self.assertEqual(device.asked, 2 * ["computed", "copy after", "copy", "copied"])

    def test_a_bucket_is_copied_stretch_by_stretch(self) -> None:
        from paceline.torch.staging import Staging

        device = FakeDevice(patience=1)
        staging = Staging(device, [(4, 2), (0, 2), (2, 2), (8, 1)], [torch.zeros(2)] * 3 + [torch.tensor(0.0)])
        memory, buffer = torch.zeros(9), staging.buffer()
        staging.put(memory, buffer, [3, 1, 2], [torch.tensor(7.0), torch.ones(2), torch.full((2,), 2.0)], 1.0)
        staging.wait()
        self.assertEqual(memory.tolist(), [1.0, 1.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 7.0])
        self.assertEqual(device.asked.count("copy"), 2)

    def test_computing_waits_for_what_came_back_and_an_event_tells_when_the_memory_is_free(self) -> None:
        from paceline.torch.staging import Staging

        device = FakeDevice(patience=5)
        staging = Staging(device, [(0, 4)], [torch.zeros(4)])
        memory, buffer = torch.ones(4), staging.buffer()
        staging.take(buffer, memory, [0]).synchronize()
        memory.fill_(9.0)
        self.assertEqual(buffer.views[0].tolist(), [1.0] * 4)
        self.assertEqual(device.asked, ["computed", "return after", "copy", "returned", "compute after"])

    def test_parts_that_came_back_early_are_not_copied_again(self) -> None:
        from paceline.torch.staging import Staging

        device = FakeDevice(patience=5)
        staging = Staging(device, [(1, 4), (5, 4)], [torch.zeros(4)] * 2)
        memory, buffer = torch.arange(9.0), staging.buffer()
        staging.take_early(buffer, memory, [(6, 3), (3, 3)])
        device.work(1)
        memory[3:] = -1.0
        staging.take(buffer, memory, [0, 1]).synchronize()
        self.assertEqual(buffer.numbers.tolist(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
        self.assertEqual(device.asked.count("copy"), 2)
        staging.take(buffer, memory, [1])
        self.assertEqual(buffer.views[1].tolist(), [-1.0] * 4, "the next step's are taken anew")


class StagedExchangeTest(TorchTest):
    """Whole runs with a device that copies late: the numbers are those of a run without one."""

    def both(self, text: str, plan: Any, patience: int) -> List[Any]:
        plain = self.script(text, plan())
        staged = self.script(fake(patience) + textwrap.dedent(text), plan())
        self.assert_replicas(staged)
        self.assertEqual(staged[0].final, plain[0].final)
        return staged

    def test_gradients_that_are_copied_beside_give_the_same_bits(self) -> None:
        sgd = "BATCH = 4\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n" + LOOP
        for patience in (0, 1, 3, 1000):
            staged = self.both(sgd, lambda: Plan(workers=2, steps=20, bucket=40, times=True), patience)
            # Every tensor once in each step; a slow device's buckets one by one at the end.
            for tickets in staged[0].tickets:
                self.assertEqual(sorted(number for ticket in tickets for number in ticket), [0, 1, 2, 3])
            self.assertGreater(max(len(tickets) for tickets in staged[0].tickets), 1, "they travel one after the other")

    def test_other_exchanges_take_the_same_way(self) -> None:
        adam = "BATCH = 4\noptimizer = torch.optim.Adam(model.parameters(), lr=0.01)\n" + LOOP
        for exchange in ({"takes": "gradients-from-parameters"}, {"gives": "parameters", "takes": "parameters"}):
            self.both(adam, lambda: Plan(workers=2, steps=12, **exchange), 2)

    def test_half_precision_is_converted_on_its_way(self) -> None:
        text = (
            "BATCH = 4\nmodel = model.to(torch.bfloat16)\n"
            "data = TensorDataset(*(tensor.to(torch.bfloat16) for tensor in data.tensors))\n"
            "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n" + LOOP
        )
        self.both(text, lambda: Plan(workers=2, steps=12, bucket=16), 1)

    def test_a_tensor_that_nobody_used_keeps_no_gradient(self) -> None:
        text = (
            "BATCH = 4\nmodel.spare = nn.Linear(2, 2)\nmodel.forward = lambda x: model[2](model[1](model[0](x)))\n"
            "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)\n" + LOOP
        )
        self.both(text, lambda: Plan(workers=2, steps=8, bucket=16), 2)


class DeviceTest(TorchTest):
    def test_a_gpu_that_was_given_and_is_not_there_is_refused(self) -> None:
        if torch.cuda.is_available():
            self.skipTest("there is CUDA")
        environment = {"PACELINE_DEVICE": "cuda:0", "PACELINE_GPU": "3"}
        for line in ("model.to(pace.device())", "pace.attach(model)"):
            ranks = self.script(line, Plan(workers=1, device="cuda:0"), environment=environment, expect_end=False)
            told = (ranks[0].fault or {}).get("message", "") + ranks[0].errors
            self.assertIn("--gpus gives this worker the GPU 3", told)
            self.assertIn("finds no CUDA", told)

    def test_without_one_the_script_computes_where_it_can(self) -> None:
        ranks = self.script("print(pace.device().type)\npace.attach(model)", Plan(workers=1, gives="nothing", takes="nothing"))
        self.assertEqual(ranks[0].output.split()[-1], "cuda" if torch.cuda.is_available() else "cpu")


if __name__ == "__main__":
    unittest.main()
