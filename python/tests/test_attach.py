"""The attach protocol between the reference rank and scripts in plain Python."""

from __future__ import annotations

import array
import os
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from pathlib import Path
from typing import Any, List

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from fake_rank import PACKAGE, FakeRun, Plan, Rank, ScriptEnded, run

# Two tensors whose gradient is the rank's number + 1 everywhere; learns by subtracting a tenth of the mean.
SCRIPT = """
import os, sys
from paceline import attach
link = attach.attach([("weight", (2, 3)), ("bias", (3,))])
for number in range(2):
    tensor = link.parameter(number)
    for index in range(len(tensor)):
        tensor[index] = number + link.rank
link.start()
while not link.over and link.step < 5:
    for number in range(2):
        parameter, gradient = link.parameter(number), link.gradient(number)
        for index in range(len(parameter)):
            if link.gives == "gradients":
                gradient[index] = (link.rank + 1) * link.scale
            elif link.gives == "updates":
                gradient[index] = -0.1 * (link.rank + 1) * link.scale
            elif link.gives == "parameters":
                parameter[index] -= 0.1 * (link.rank + 1)
    if link.gives == "gradients":
        if link.used is not None:
            link.gradients[link.used] = link.gradients[link.used + 1] = 1
        link.ticket([1])
        link.ticket([0])
    settled = link.done(samples=8, loss=float(link.step))
    if settled.over:
        break
    if link.takes == "gradients":
        for number in range(2):
            for index, mean in enumerate(link.gradient(number)):
                link.parameter(number)[index] -= 0.1 * mean
    link.taken()
link.report(loss=0.25, accuracy=0.75, extra=3)
"""


class AttachTest(unittest.TestCase):
    def script(self, text: str, plan: Plan, **options: Any) -> List[Rank]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "script.py"
            path.write_text(textwrap.dedent(text))
            return run(plan, [str(path)], **options)

    def assert_numbers(self, rank: Rank, first: float, count: int) -> None:
        numbers = array.array("f", rank.final).tolist()
        # The fake rank lays tensors out from the last to the first: three numbers of the bias come first.
        for number in numbers[3:]:
            self.assertAlmostEqual(number, first, places=5)
        self.assertEqual(len(numbers), count)

    def test_plain_scripts_exchange_gradients_updates_and_parameters(self) -> None:
        for gives, takes in (("gradients", "gradients"), ("updates", "parameters"), ("parameters", "parameters")):
            with self.subTest(gives=gives, takes=takes):
                ranks = self.script(SCRIPT, Plan(workers=2, gives=gives, takes=takes))
                for rank in ranks:
                    # Rank 0's parameters are the start; each of five steps moves them by a tenth of 1.5.
                    self.assert_numbers(rank, -0.75, 9)
                    self.assertEqual([account.loss for account in rank.accounts], [0, 1, 2, 3, 4])
                    self.assertEqual({account.samples for account in rank.accounts}, {8})
                    self.assertEqual(rank.reports, [{"loss": 0.25, "accuracy": 0.75, "extra": 3, "step": 5}])

    def test_accounts_travel_together_where_nothing_is_exchanged(self) -> None:
        (rank,) = self.script(SCRIPT, Plan(workers=1, gives="nothing", takes="nothing"))
        self.assertEqual([account.step for account in rank.accounts], [0, 1, 2, 3, 4])

    def test_where_nothing_is_exchanged_the_script_saves_and_ends_by_itself(self) -> None:
        text = """
            from paceline import attach
            link = attach.attach([("weight", (2,))])
            link.start()
            while not link.over:
                if link.done().save:
                    link.save(b"step %d" % link.step)
            """
        (rank,) = self.script(text, Plan(workers=1, gives="nothing", takes="nothing", until=8, saves_every=3))
        self.assertEqual([account.step for account in rank.accounts], list(range(8)))
        self.assertEqual((rank.kept_step, rank.kept), (6, b"step 6"))
        plan = Plan(workers=1, gives="nothing", takes="nothing", until=8, start=8, kept=[b"step 8"])
        self.assertEqual(self.script(text, plan)[0].accounts, [])

    def test_an_account_is_not_held_back_while_the_script_is_busy(self) -> None:
        (rank,) = self.script(
            """
            import time
            from paceline import attach
            link = attach.attach([("weight", (2,))])
            link.start()
            link.done(samples=1)
            while not link.over:   # the reference rank says OVER at a report, which must come behind the account
                time.sleep(0.2)
                link.report(value=1)
                link.poll()
            """,
            Plan(workers=1, gives="nothing", takes="nothing", over_at_report=True),
        )
        self.assertEqual(len(rank.accounts), 1)

    def test_a_run_that_is_over_is_answered_without_the_rank(self) -> None:
        ranks = self.script(
            """
            from paceline import attach
            link = attach.attach([("weight", (2,))])
            link.start()
            for step in range(10):
                link.ticket([0])
                settled = link.done()
                assert settled.over == (step >= 3), (step, settled)
                if not settled.over:
                    link.taken()
            """,
            Plan(workers=2, steps=3),
        )
        self.assertEqual([len(rank.accounts) for rank in ranks], [4, 4])

    def test_what_was_saved_comes_back(self) -> None:
        text = """
            from paceline import attach
            link = attach.attach([("weight", (2,))])
            link.start()
            print(link.step, len(link.kept), link.kept[:5], flush=True)
            for _ in range(3):
                link.ticket([0])
                settled = link.done()
                link.taken()
                if settled.save:
                    link.parameter(0)[0] = 42
                    link.save(b"state" * (5 << 20))
            """
        (rank,) = self.script(text, Plan(workers=1, save_at=1))
        self.assertEqual(rank.kept, b"state" * (5 << 20))
        self.assertEqual(rank.kept_step, 2)
        (again,) = self.script(text, Plan(workers=1, start=2, kept=[b"state" * 900]))
        self.assertEqual(again.output, f"2 4500 {b'state'}\n")
        self.assertEqual([account.step for account in again.accounts], [2, 3, 4])

    def test_started_alone_there_is_nothing_to_attach_to(self) -> None:
        text = "from paceline import attach; print(attach.attach([('w', (1,))]), attach.rank_and_workers())"
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
        environment.pop("PACELINE_ATTACH", None)
        told = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True)
        self.assertEqual(told.stdout, "None (0, 1)\n", told.stderr)

    def test_the_package_needs_no_other(self) -> None:
        for module, text, told in (
            ("pandas", "import paceline; paceline.load('.')", "reading the store needs pandas: pip install pandas"),
            ("torch", "import paceline.torch", "paceline.torch needs PyTorch 2.1 or newer: pip install torch"),
        ):
            text = f"import sys; sys.modules['{module}'] = None; {text}"
            environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
            ended = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True)
            self.assertIn(f"ImportError: {told}", ended.stderr)

    def test_a_descriptor_that_is_no_socket_is_named(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "PACELINE_ATTACH": "99"}
        text = "from paceline import attach; attach.attach([('w', (1,))])"
        told = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True)
        self.assertIn("PACELINE_ATTACH says descriptor 99, which is not an open socket", told.stderr)

    # How scripts end.

    def fault(self, text: str) -> Rank:
        before = "from paceline import attach\nlink = attach.attach([('w', (2,))])\nlink.start()\n"
        plan = Plan(workers=1, gives="nothing", takes="nothing")
        (rank,) = self.script(before + textwrap.dedent(text), plan, expect_end=False)
        self.assertFalse(rank.left)
        self.assertIsNotNone(rank.fault, rank.errors)
        self.assertNotEqual(rank.code, 0)
        return rank

    def test_an_uncaught_exception_is_told_with_its_last_line_and_traceback(self) -> None:
        rank = self.fault("def f():\n    raise ValueError('too hot')\nf()")
        self.assertEqual(rank.fault["message"], "ValueError: too hot")
        self.assertIn("in f", rank.fault["detail"])
        self.assertIn("ValueError: too hot", rank.errors)

    def test_ctrl_c_is_told(self) -> None:
        # Whoever runs the tests in the background may have them ignore the signal.
        heed = "import signal, os\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        rank = self.fault(heed + "os.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(60)")
        self.assertEqual(rank.fault["message"], "KeyboardInterrupt")

    def test_sys_exit_with_a_code_is_told(self) -> None:
        rank = self.fault("import sys\nsys.exit(3)")
        self.assertEqual(rank.fault["message"], "the script ended itself: sys.exit(3)")
        self.assertEqual(rank.code, 3)

    def test_sys_exit_with_a_text_is_told(self) -> None:
        rank = self.fault("import sys\nsys.exit('no data')")
        self.assertEqual(rank.fault["message"], "the script ended itself: sys.exit('no data')")

    def test_sys_exit_without_a_code_leaves(self) -> None:
        text = "import sys\nfrom paceline import attach\nlink = attach.attach([('w', (2,))])\nlink.start()\nsys.exit()"
        (rank,) = self.script(text, Plan(workers=1, gives="nothing", takes="nothing"))
        self.assertTrue(rank.left)

    def test_an_exit_that_was_caught_is_no_end(self) -> None:
        (rank,) = self.script(
            """
            import sys
            from paceline import attach
            link = attach.attach([("w", (2,))])
            link.start()
            try:
                sys.exit(2)
            except SystemExit:
                pass
            link.report(loss=float("nan"))
            """,
            Plan(workers=1, gives="nothing", takes="nothing"),
        )
        self.assertEqual(rank.reports, [{"loss": None, "step": 0}])

    def test_a_wrong_version_is_told_to_both_sides(self) -> None:
        (rank,) = self.script(SCRIPT, Plan(workers=1, protocol=2), expect_end=False)
        for told in (rank.errors, rank.fault["message"]):
            self.assertIn("the rank speaks version 2 of the attach protocol", told)
            self.assertIn("this Python package version 1", told)
        self.assertEqual(rank.code, 1)

    def started(self, text: str, plan: Plan) -> FakeRun:
        started = FakeRun(plan, ["-c", textwrap.dedent(text)])
        self.addCleanup(lambda: [rank.process.kill() for rank in started.ranks if rank.process.poll() is None])
        return started

    def test_the_death_of_the_rank_ends_the_script(self) -> None:
        started = self.started(SCRIPT, Plan(workers=1))
        (rank,) = started.ranks
        started._welcome(rank)
        rank.receive()
        started.finish()  # closes the socket where START is due
        self.assertEqual(rank.code, 1)
        self.assertIn("paceline: rank 0 has ended; this script was its compute device and ends too", rank.errors)
        self.assertNotIn("Traceback", rank.errors)

    def test_the_death_of_the_rank_is_seen_at_the_end_too(self) -> None:
        started = self.started(
            "from paceline import attach\nattach.attach([('w', (2,))]).start()",
            Plan(workers=1, gives="nothing", takes="nothing"),
        )
        (rank,) = started.ranks
        with self.assertRaises(ScriptEnded):
            rank.send = _without_bye(rank.send, rank)  # type: ignore[method-assign]
            started.drive()
            raise ScriptEnded
        started.finish()
        self.assertEqual(rank.code, 1)
        self.assertIn("rank 0 has ended", rank.errors)

    def test_the_death_of_the_rank_is_seen_where_nothing_is_exchanged(self) -> None:
        started = self.started(
            """
            import time
            from paceline import attach
            link = attach.attach([("w", (2,))])
            link.start()
            while not link.over:
                link.done()
                time.sleep(0.01)
            """,
            Plan(workers=1, gives="nothing", takes="nothing"),
        )
        (rank,) = started.ranks
        rank.receive, receive = _until_steps(rank), rank.receive  # type: ignore[method-assign]
        with self.assertRaises(ScriptEnded):
            started.drive()
        rank.receive = receive  # type: ignore[method-assign]
        started.finish()
        self.assertEqual(rank.code, 1)
        self.assertIn("rank 0 has ended", rank.errors)

    def test_a_refusal_is_shown(self) -> None:
        started = self.started(SCRIPT, Plan(workers=1))
        (rank,) = started.ranks
        rank.receive()
        rank.send(17, b'{"message": "servers do not run LBFGS"}')
        started.finish()
        self.assertEqual(rank.code, 1)
        self.assertIn("the run cannot go on with this script: servers do not run LBFGS", rank.errors)

    def test_a_forked_child_does_not_hold_the_socket(self) -> None:
        started = self.started(
            """
            import os, sys, time
            from paceline import attach
            link = attach.attach([("w", (2,))])
            link.start()
            child = os.fork()
            if child == 0:
                link.report(loss=1.0)   # inert
                assert link.done().over
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1), os.dup2(1, 2)
                time.sleep(60)
                sys.exit(1)
            print(child, flush=True)
            os._exit(9)
            """,
            Plan(workers=1, gives="nothing", takes="nothing"),
        )
        (rank,) = started.ranks
        begun = time.monotonic()
        with self.assertRaises(ScriptEnded):
            started.drive()
        self.assertLess(time.monotonic() - begun, 50, "the child held the socket open")
        assert rank.process.stdout is not None
        os.kill(int(rank.process.stdout.readline()), 9)
        started.finish()
        self.assertEqual(rank.reports, [])

    def test_a_child_program_inherits_nothing(self) -> None:
        (rank,) = self.script(
            """
            import subprocess, sys
            from paceline import attach
            text = "import os; print('PACELINE_ATTACH' in os.environ, len(os.listdir('/proc/self/fd')))"
            told = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, close_fds=False).stdout
            attach.attach([("w", (2,))]).start()
            print(told)
            """,
            Plan(workers=1, gives="nothing", takes="nothing"),
        )
        self.assertEqual(rank.output.split()[0], "False")


def _until_steps(rank: Rank) -> Any:
    receive = rank.receive

    def received() -> Any:
        kind, body = receive()
        if kind == 9:
            raise ScriptEnded
        return kind, body

    return received


def _without_bye(send: Any, rank: Rank) -> Any:
    def sent(kind: int, body: bytes = b"", descriptors: Any = ()) -> None:
        if kind == 15:
            rank.socket.close()
        else:
            send(kind, body, descriptors)

    return sent


if __name__ == "__main__":
    unittest.main()
