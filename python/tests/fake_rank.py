"""A reference rank in Python: starts copies of a script and speaks the rank's side of ``docs/attach.md`` with them.

All ranks of a run live in this process and step together, so that what they exchange can be computed in a few lines.
It refuses whatever the protocol does not allow, by raising :class:`ProtocolError`.
"""

from __future__ import annotations

import array
import json
import math
import mmap
import os
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from forked import ForkedScript

from paceline import frames

PACKAGE = Path(__file__).resolve().parent.parent
DEADLINE_S = 120.0


class ProtocolError(AssertionError):
    """A script said something that the protocol does not allow."""


class ScriptEnded(Exception):
    """A script closed its socket."""


@dataclass
class Plan:
    """What the ranks of a run tell their scripts."""

    workers: int = 2
    gives: str = "gradients"
    takes: str = "gradients"
    steps: Optional[int] = None
    """The run is over before this step."""
    bucket: int = 25 << 20
    used: bool = True
    times: bool = False
    seed: int = 7
    scale: Optional[float] = None
    protocol: int = frames.PROTOCOL
    save_at: Optional[int] = None
    """The step after whose update the scripts save."""
    kept: Optional[List[bytes]] = None
    start: int = 0
    start_parameters: Optional[bytes] = None
    until: Optional[int] = None
    saves_every: Optional[int] = None
    delegated: Optional[Dict[str, Any]] = None
    device: Optional[str] = None
    over_at_report: bool = False
    """Sends OVER once rank 0 has reported."""


@dataclass
class Account:
    """A step as a script told it."""

    step: int
    data_ns: int
    forward_ns: int
    backward_ns: int
    staging_ns: int
    update_ns: int
    cpu_ns: int
    samples: int
    loss: float
    evaluated_ns: int
    factor: Optional[float] = None
    times_us: Sequence[int] = ()


@dataclass
class Rank:
    """One rank: its script, its memory, what came of them."""

    number: int
    process: Any
    socket: socket.socket
    hello: Dict[str, Any] = field(default_factory=dict)
    ranges: List[Tuple[int, int]] = field(default_factory=list)
    parameters: Any = None
    gradients: Any = None
    accounts: List[Account] = field(default_factory=list)
    tickets: List[List[List[int]]] = field(default_factory=list)
    reports: List[Dict[str, Any]] = field(default_factory=list)
    fault: Optional[Dict[str, Any]] = None
    kept: Optional[bytes] = None
    kept_parameters: Optional[bytes] = None
    kept_step: Optional[int] = None
    left: bool = False
    final: bytes = b""
    code: Optional[int] = None
    output: str = ""
    errors: str = ""

    def send(self, kind: int, body: bytes = b"", descriptors: Sequence[int] = ()) -> None:
        frame = struct.pack("<II", kind, len(body)) + body
        if descriptors:
            socket.send_fds(self.socket, [frame], list(descriptors))
        else:
            self.socket.sendall(frame)

    def receive(self) -> Tuple[int, bytes]:
        kind, length = struct.unpack("<II", self._read(8))
        if kind not in frames.NAMES or length > frames.BODY_LIMIT:
            raise ProtocolError(f"frame of kind {kind} with {length} bytes")
        body = self._read(length)
        if kind == frames.FAULT:
            self.fault = json.loads(body)
            raise ScriptEnded
        return kind, body

    def wait(self, kind: int) -> bytes:
        found, body = self.receive()
        if found != kind:
            raise ProtocolError(f"{frames.NAMES[found]} instead of {frames.NAMES[kind]}")
        return body

    def _read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            try:
                more = self.socket.recv(length - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                raise ScriptEnded
            data += more
        return data

    def numbers(self) -> int:
        return max(first + length for first, length in self.ranges)


class FakeRun:
    """A run of a script on several ranks. Use :func:`run`."""

    def __init__(self, plan: Plan, command: Sequence[str], environment: Optional[Dict[str, str]] = None) -> None:
        self.plan = plan
        self.over = False
        self.server: Any = None
        self.ranks = [self._start(number, command, environment or {}) for number in range(plan.workers)]

    def _start(self, number: int, command: Sequence[str], environment: Dict[str, str]) -> Rank:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.settimeout(DEADLINE_S)
        os.set_inheritable(theirs.fileno(), True)
        settings = {
            **os.environ,
            "PYTHONPATH": str(PACKAGE),
            "PACELINE_ATTACH": str(theirs.fileno()),
            "PACELINE_RANK": str(number),
            "PACELINE_WORKERS": str(self.plan.workers),
            "PACELINE_SEED": str(self.plan.seed),
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        process: Any
        if "torch" in sys.modules and command[0].endswith(".py") and "FRESH_PROCESS" not in os.environ:
            process = ForkedScript(command, settings, theirs.fileno())
            theirs.close()
            return Rank(number, process, ours)
        process = subprocess.Popen(
            [sys.executable, *command],
            env=settings,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        return Rank(number, process, ours)

    # The protocol.

    def drive(self) -> None:
        for rank in self.ranks:
            self._welcome(rank)
        for rank in self.ranks:
            rank.wait(frames.READY)
        start = self.plan.start_parameters or bytes(self.ranks[0].parameters)
        for rank in self.ranks:
            rank.parameters[:] = start
            kept = (self.plan.kept or [b""] * self.plan.workers)[rank.number]
            document = {"step": self.plan.start, "scale": self._scale(), "kept": len(kept)}
            rank.send(frames.START, json.dumps(document).encode())
            for first in range(0, len(kept), 1000):
                rank.send(frames.PART, kept[first : first + 1000])
        if self.plan.gives == "nothing":
            for rank in self.ranks:
                self._listen(rank)
            return
        step = self.plan.start
        while not all(rank.left for rank in self.ranks):
            self._step(step)
            step += 1

    def _scale(self) -> float:
        return self.plan.scale if self.plan.scale is not None else 1.0 / self.plan.workers

    def _welcome(self, rank: Rank) -> None:
        rank.hello = json.loads(rank.wait(frames.HELLO))
        if rank.hello["protocol"] != frames.PROTOCOL:
            raise ProtocolError(f"protocol {rank.hello['protocol']}")
        first = 0
        # As a rank may lay tensors out: from the last to the first.
        ranges = []
        for tensor in reversed(rank.hello["tensors"]):
            length = math.prod(tensor["shape"])
            ranges.append((first, length))
            first += length
        rank.ranges = ranges[::-1]
        used = first if self.plan.used else None
        total = first + (len(ranges) if self.plan.used else 0)
        descriptors = [os.memfd_create(name) for name in ("parameters", "gradients")]
        for descriptor in descriptors:
            os.ftruncate(descriptor, 4 * total)
        rank.parameters, rank.gradients = (memoryview(mmap.mmap(d, 4 * total)) for d in descriptors)
        welcome = {
            "protocol": self.plan.protocol,
            "package": "test",
            "rank": rank.number,
            "workers": self.plan.workers,
            "seed": self.plan.seed,
            "numbers": total,
            "ranges": rank.ranges,
            "used": used,
            "bucket": self.plan.bucket,
            "gives": self.plan.gives,
            "takes": self.plan.takes,
            "times": self.plan.times,
            "until": self.plan.until,
            "saves_every": self.plan.saves_every,
            "delegated": self.plan.delegated,
            **({} if self.plan.device is None else {"device": self.plan.device}),
        }
        rank.send(frames.WELCOME, json.dumps(welcome).encode(), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def _gradient(self, rank: Rank, number: int) -> bytes:
        first, length = rank.ranges[number]
        return bytes(rank.gradients[4 * first : 4 * (first + length)])

    def _step(self, step: int) -> None:
        over = self.over or (self.plan.steps is not None and step >= self.plan.steps)
        waiting = [rank for rank in self.ranks if not rank.left and self._account(rank, step)]
        # One that has left ends the run for the others before this step.
        self.over = over = over or len(waiting) < len(self.ranks)
        save = step == self.plan.save_at and not over
        if not over:
            self._exchange()
        for rank in waiting:
            flags = (1 if over else 0) | (2 if save else 0)
            rank.send(frames.SETTLED, struct.pack("<QId", step, flags, self._scale()))
        for rank in waiting:
            if not over:
                (taken,) = struct.unpack("<Q", rank.wait(frames.TAKEN))
                if taken != step:
                    raise ProtocolError(f"took {taken} in step {step}")
        if save:
            for rank in waiting:
                self._saved(rank)
            for rank in waiting:
                rank.send(frames.GO, struct.pack("<Id", 0, self._scale()))

    def _account(self, rank: Rank, step: int) -> bool:
        """Hears a script until its account of a step; False if it leaves."""
        tickets: List[List[int]] = []
        announced_numbers: Dict[int, bytes] = {}
        while True:
            kind, body = rank.receive()
            if kind == frames.TICKET:
                tickets.append(array.array("I", body).tolist())
                announced_numbers.update({number: self._gradient(rank, number) for number in tickets[-1]})
            elif kind == frames.REPORT:
                rank.reports.append(json.loads(body))
            elif kind == frames.LEAVE:
                self._leave(rank)
                return False
            elif kind == frames.DONE:
                self._note(rank, body, step)
                announced = sorted(number for ticket in tickets for number in ticket)
                expected = list(range(len(rank.ranges))) if self.plan.gives == "gradients" else []
                if announced != expected:
                    raise ProtocolError(f"tickets {tickets}")
                for number, numbers in announced_numbers.items():
                    if self._gradient(rank, number) != numbers:
                        raise ProtocolError(f"the gradient of tensor {number} has changed after its ticket")
                rank.tickets.append(tickets)
                return True
            else:
                raise ProtocolError(f"{frames.NAMES[kind]} in a step")

    def _note(self, rank: Rank, body: bytes, step: Optional[int]) -> None:
        account = Account(*struct.unpack_from("<8QdQ", body))
        body = body[80:]
        if self.plan.gives == "gradients" and self.plan.takes == "parameters":
            (account.factor,) = struct.unpack_from("<d", body)
            body = body[8:]
        if self.plan.times:
            account.times_us = array.array("I", body).tolist()
            if len(account.times_us) != len(rank.ranges):
                raise ProtocolError(f"{len(account.times_us)} times of {len(rank.ranges)} tensors")
        elif body:
            raise ProtocolError(f"{len(body)} bytes behind an account")
        if step is not None and account.step != step:
            raise ProtocolError(f"account of step {account.step} in step {step}")
        rank.accounts.append(account)

    def _listen(self, rank: Rank) -> None:
        """Hears a script that exchanges nothing until it leaves."""
        while True:
            kind, body = rank.receive()
            if kind == frames.STEPS:
                for first in range(0, len(body), 80):
                    self._note(rank, body[first : first + 80], None)
            elif kind == frames.REPORT:
                rank.reports.append(json.loads(body))
                if self.plan.over_at_report and rank.number == 0:
                    for other in self.ranks:
                        other.send(frames.OVER)
                if self.plan.save_at is not None and rank.kept is None:
                    rank.send(frames.SAVE)
            elif kind in (frames.PART, frames.SAVED):
                self._saved(rank, kind, body)
                rank.send(frames.GO, struct.pack("<Id", 0, 1.0))
            elif kind == frames.LEAVE:
                self._leave(rank)
                return
            else:
                raise ProtocolError(f"{frames.NAMES[kind]} where nothing is exchanged")

    def _saved(self, rank: Rank, kind: int = 0, body: bytes = b"") -> None:
        pieces: List[bytes] = []
        if not kind:
            kind, body = rank.receive()
        while kind in (frames.PART, frames.REPORT):
            if kind == frames.PART:
                pieces.append(body)
            else:
                rank.reports.append(json.loads(body))
            kind, body = rank.receive()
        if kind == frames.LEAVE:  # the script ended with that step
            self._leave(rank)
            return
        if kind != frames.SAVED:
            raise ProtocolError(f"{frames.NAMES[kind]} instead of SAVED")
        rank.kept_step, length = struct.unpack("<QQ", body)
        rank.kept = b"".join(pieces)
        rank.kept_parameters = bytes(rank.parameters)
        if len(rank.kept) != length:
            raise ProtocolError(f"{len(rank.kept)} bytes came, {length} were said")

    def _leave(self, rank: Rank) -> None:
        rank.left = True
        rank.final = bytes(rank.parameters[: 4 * rank.numbers()])
        rank.send(frames.BYE)

    # What is exchanged: plain sums, as the reference.

    def _exchange(self) -> None:
        gives, takes = self.plan.gives, self.plan.takes
        given = [rank.parameters if gives == "parameters" else rank.gradients for rank in self.ranks]
        total = _sum(given)
        if gives == "parameters":
            total = _map(total, lambda value: value / self.plan.workers)
        elif gives == "updates":
            total = _sum([self.ranks[0].parameters, total])
        elif takes == "parameters":
            total = self._serve(total)
        for rank in self.ranks:
            target = rank.gradients if takes == "gradients" else rank.parameters
            if takes == "parameters":
                # Flags are no parameters.
                target[: 4 * rank.numbers()] = bytes(total)[: 4 * rank.numbers()]
            else:
                target[:] = bytes(total)

    def _serve(self, gradients: Any) -> Any:
        """Servers' optimizer: torch's own on the settings that travelled."""
        import torch

        rank = self.ranks[0]
        numbers = torch.frombuffer(rank.parameters, dtype=torch.float32)
        tensors = [numbers[first : first + length] for first, length in rank.ranges]
        if self.server is None:
            document = rank.hello["optimizer"]
            kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[document["kind"]]
            names = ("momentum", "nesterov") if document["kind"] == "sgd" else ("betas", "eps")
            self.server = kind(
                [
                    {
                        "params": [tensors[number] for number in group["tensors"]],
                        "base": group["lr"],
                        **{name: group[name] for name in (*names, "lr", "weight_decay")},
                    }
                    for group in document["groups"]
                ]
            )
        total = torch.frombuffer(bytearray(gradients), dtype=torch.float32)
        for (first, length), tensor in zip(rank.ranges, tensors):
            tensor.grad = total[first : first + length]
        for group, mine in zip(rank.hello["optimizer"]["groups"], self.server.param_groups):
            mine["params"] = [tensors[number] for number in group["tensors"]]
            mine["lr"] = mine["base"] * rank.accounts[-1].factor
        state = getattr(self, "_server_state", None)
        if state is not None:  # the views are new ones in each step
            self.server.state.clear()
            self.server.state.update({tensors[number]: kept for number, kept in state.items()})
        self.server.step()
        self._server_state = {n: self.server.state[t] for n, t in enumerate(tensors) if t in self.server.state}
        return bytes(rank.parameters)

    # The end.

    def finish(self) -> None:
        for rank in self.ranks:
            rank.socket.close()
        for rank in self.ranks:
            try:
                rank.output, rank.errors = rank.process.communicate(timeout=DEADLINE_S)
            except subprocess.TimeoutExpired:
                rank.process.kill()
                rank.output, rank.errors = rank.process.communicate()
                rank.errors += "\n(killed: it did not end)"
            rank.code = rank.process.returncode


def run(
    plan: Plan,
    command: Sequence[str],
    environment: Optional[Dict[str, str]] = None,
    expect_end: bool = True,
) -> List[Rank]:
    """Runs a script on ``plan.workers`` ranks to its end; raises with its output if it does not end well."""
    started = FakeRun(plan, command, environment)
    problem: Optional[BaseException] = None
    try:
        started.drive()
    except (ScriptEnded, ProtocolError, socket.timeout) as error:
        problem = error
    finally:
        started.finish()
    failed = problem is not None or any(rank.code != 0 for rank in started.ranks)
    if expect_end and failed:
        told = "\n".join(f"rank {r.number} (code {r.code}):\n{r.output}{r.errors}" for r in started.ranks)
        raise AssertionError(f"{type(problem).__name__}: {problem}\n{told}")
    return started.ranks


def _sum(memories: Sequence[Any]) -> bytes:
    try:
        import torch
    except ImportError:
        lists = [array.array("f", bytes(memory)) for memory in memories]
        return array.array("f", [math.fsum(values) for values in zip(*lists)]).tobytes()
    tensors = [torch.frombuffer(bytearray(memory), dtype=torch.float32) for memory in memories]
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return bytes(memoryview(total.numpy()).cast("B")) if hasattr(total, "numpy") else bytes(total.tolist())


def _map(numbers: bytes, function: Any) -> bytes:
    return array.array("f", [function(value) for value in array.array("f", numbers)]).tobytes()
