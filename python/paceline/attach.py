"""The script's side of the attach protocol (``docs/attach.md``), with nothing but Python's own library.

A rank of Paceline starts a script and shares two memory files and a socket with it. ``paceline.torch`` stands on this
module; a script without PyTorch uses it directly::

    from paceline import attach

    link = attach.attach([("weight", (10, 3)), ("bias", (3,))])   # None when the script was started alone
    fill(link.parameter(0), link.parameter(1))                    # this script's own start
    link.start()                                                  # from here on they are the run's
    while not link.over:
        compute(link.gradient(0), link.gradient(1), scale=link.scale)
        link.ticket([1, 0])                                       # final: may travel while others are computed
        settled = link.done(samples=32, loss=0.5)
        if not settled.over:
            update(link.parameter(0), link.gradient(0))
            link.taken()
    link.leave()

Deliberately absent: tensors, devices, optimisers.
"""

from __future__ import annotations

import array
import atexit
import collections
import json
import math
import mmap
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import Any, Callable, Deque, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Type

from .frames import (
    ACCOUNT,
    ARRIVED,
    ARRIVED_BODY,
    BODY_LIMIT,
    BYE,
    DONE,
    FACTOR,
    FAULT,
    GO,
    GO_BODY,
    HEADER,
    HELLO,
    IS_OVER,
    IS_SAVE,
    LEAVE,
    NAMES,
    NUMBER,
    OVER,
    PART,
    PIECE,
    PROTOCOL,
    READY,
    REFUSED,
    REPORT,
    SAVE,
    SAVED,
    SAVED_BODY,
    SETTLED,
    SETTLED_BODY,
    START,
    STEPS,
    TAKEN,
    TICKET,
    UNUSED,
    WELCOME,
)
from .version import __version__

# Accounts wait so long for others where nothing is exchanged; the protocol allows 50 ms.
_GATHER_S = 0.04


class AttachError(Exception):
    """Something that the rank and this script cannot do together, with what to do about it."""


class RankLost(SystemExit):
    """The rank has ended or has refused to go on. Ends the script with the reason and code 1."""

    def __init__(self, message: str) -> None:
        super().__init__(f"paceline: {message}")


class Settled(NamedTuple):
    """What the rank says when a step is settled."""

    step: int
    over: bool
    """The run ended before this step: make no update of it and end the loop."""
    save: bool
    """Call :meth:`Attachment.save` after the update of this step."""
    scale: float
    """The factor of the next step's gradients."""


class Attachment:
    """The connection with the rank that started this script. :func:`attach` makes it."""

    def __init__(self, connection: socket.socket, hello: Dict[str, Any]) -> None:
        self._socket = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._unread = bytearray()
        self._sending = threading.Lock()
        # Filled by the script's thread, emptied by the one that gathers.
        self._accounts: Deque[Tuple[Any, ...]] = collections.deque()
        self._gathering: Optional[threading.Event] = None
        self._gathering_failed: Optional[OSError] = None
        self.ended = False
        """Whether nothing travels any more: this script has left, or this process is a forked child."""
        self._exit_code: Any = None
        self._cpu_ns = time.process_time_ns()
        self.over = False
        """Whether the run is over: end the loop."""
        self.save_wanted = False
        self.before_leave: Optional[Callable[[], None]] = None
        """Called before ``LEAVE``: puts the final parameters into the memory."""

        self.arrived: List[Tuple[int, int]] = []
        """First element and length of parts of the mean gradient that are there before the step is settled."""
        self.on_arrived: Optional[Callable[[], None]] = None
        """Called when something was added to ``arrived``, while this waits or looks; it takes it away."""

        self._send(HELLO, _document(hello))
        welcome = self._welcome()
        self.rank: int = welcome["rank"]
        self.workers: int = welcome["workers"]
        self.seed: int = welcome["seed"]
        self.ranges: List[Tuple[int, int]] = [(first, length) for first, length in welcome["ranges"]]
        """First element and length of each tensor in both memories."""
        self.used: Optional[int] = welcome["used"]
        """First element of the flags that say which tensors have a gradient."""
        self.bucket: int = welcome["bucket"]
        """Bytes: a ticket is sent when so many are final."""
        self.gives: str = welcome["gives"]
        self.takes: str = welcome["takes"]
        self.times: bool = welcome["times"]
        self.until: Optional[int] = welcome.get("until")
        """The step before which the run ends, if that is known."""
        self.saves_every: Optional[int] = welcome.get("saves_every")
        """Steps between two checkpoints, where nothing is exchanged."""
        self.delegated: Optional[Dict[str, Any]] = welcome["delegated"]
        self.device: Optional[str] = welcome.get("device")
        """What this script calls the one GPU that it is given (``--gpus``); none: it chooses."""
        self.step = 0
        """The step that is being computed."""
        self.scale = 1.0
        """What this step's gradients (or updates) are multiplied by."""
        self.kept = b""
        """What this script had saved, when the run goes on from a checkpoint."""

    # The start.

    def _welcome(self) -> Dict[str, Any]:
        kind, body, descriptors = self._receive_with_descriptors()
        try:
            if kind != WELCOME:
                raise self._unexpected(kind, body, "WELCOME")
            welcome: Dict[str, Any] = json.loads(body)
            if welcome.get("protocol") != PROTOCOL:
                message = (
                    f"the rank speaks version {welcome.get('protocol')} of the attach protocol (paceline "
                    f"{welcome.get('package')}), this Python package version {PROTOCOL} (paceline {__version__}): "
                    "install the Python package of the same paceline"
                )
                self.fault(message)
                raise RankLost(message)
            if len(descriptors) != 2:
                raise RankLost(f"WELCOME came with {len(descriptors)} descriptors instead of 2")
            size = 4 * int(welcome["numbers"])
            self.parameter_file = mmap.mmap(descriptors[0], size)
            self.gradient_file = mmap.mmap(descriptors[1], size)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self.parameters = memoryview(self.parameter_file).cast("f")
        self.gradients = memoryview(self.gradient_file).cast("f")
        return welcome

    def parameter(self, number: int) -> "memoryview[float]":  # type: ignore[type-arg,unused-ignore]
        """A tensor in the parameter memory: writable ``float32``, flat."""
        first, length = self.ranges[number]
        return self.parameters[first : first + length]  # type: ignore[return-value,unused-ignore]

    def gradient(self, number: int) -> "memoryview[float]":  # type: ignore[type-arg,unused-ignore]
        """A tensor in the gradient memory: writable ``float32``, flat."""
        first, length = self.ranges[number]
        return self.gradients[first : first + length]  # type: ignore[return-value,unused-ignore]

    def start(self) -> None:
        """Hands over this script's parameters and waits for the run's: they lie in the parameter memory afterwards.

        ``rank`` may be another one then: where this script joins others, it reads the share of one that is missing.
        """
        self._send(READY)
        start = json.loads(self._wait(START))
        self.step = start["step"]
        self.scale = start["scale"]
        # One that joins others learns only now whose share it reads; what it starts later finds it in the environment.
        self.rank = start.get("rank", self.rank)
        os.environ["PACELINE_RANK"] = str(self.rank)
        pieces: List[bytes] = []
        missing = start["kept"]
        while missing > 0:
            pieces.append(self._wait(PART))
            missing -= len(pieces[-1])
        self.kept = b"".join(pieces)
        self.over = self.gives == "nothing" and self.until is not None and self.step >= self.until
        self._cpu_ns = time.process_time_ns()

    # A step.

    def ticket(self, numbers: Iterable[int]) -> None:
        """Announces tensors whose numbers in the gradient memory are final."""
        if not (self.over or self.ended):
            self._send(TICKET, array.array("I", numbers).tobytes())

    def done(
        self,
        *,
        data_ns: int = 0,
        forward_ns: int = 0,
        backward_ns: int = 0,
        staging_ns: int = 0,
        update_ns: int = 0,
        samples: int = 0,
        loss: float = math.nan,
        evaluated_ns: int = 0,
        factor: Optional[float] = None,
        times_us: Optional[Sequence[int]] = None,
        ticket: Sequence[int] = (),
    ) -> Settled:
        """Ends this script's part of a step with its account, and waits until the step is settled.

        Where nothing is exchanged it does not wait.

        :param factor: the present factor of the learning rate, where servers run the optimiser.
        :param times_us: when each tensor was final, in µs since backward began (``frames.UNUSED``: it was not used).
        :param ticket: a last ticket, sent in the same breath.
        """
        if self.over or self.ended:
            return Settled(self.step, True, False, self.scale)
        if self.gives == "nothing":
            self.account(data_ns, forward_ns, backward_ns, staging_ns, update_ns, samples, loss, evaluated_ns)
            return Settled(self.step - 1, False, self.save_wanted, self.scale)
        account = ACCOUNT.pack(
            self.step,
            data_ns,
            forward_ns,
            backward_ns,
            staging_ns,
            update_ns,
            self._used_cpu_ns(),
            samples,
            loss,
            evaluated_ns,
        )
        if factor is not None:
            account += FACTOR.pack(factor)
        if self.times:
            account += array.array("I", times_us or [UNUSED] * len(self.ranges)).tobytes()
        frame = HEADER.pack(DONE, len(account)) + account
        if ticket:
            numbers = array.array("I", ticket).tobytes()
            frame = HEADER.pack(TICKET, len(numbers)) + numbers + frame
        self._send_frames(frame)
        step, flags, self.scale = SETTLED_BODY.unpack(self._wait(SETTLED))
        if step != self.step:
            raise self._protest(f"the rank settled step {step} instead of step {self.step}")
        self.over = self.over or bool(flags & IS_OVER)
        self.save_wanted = bool(flags & IS_SAVE)
        return Settled(step, bool(flags & IS_OVER), self.save_wanted, self.scale)

    def taken(self) -> None:
        """Says that what was settled is taken over. The next step begins."""
        if self.gives != "nothing":
            self._send(TAKEN, NUMBER.pack(self.step))
            self.step += 1

    def _used_cpu_ns(self) -> int:
        """CPU time of this process since this was last asked for."""
        before, self._cpu_ns = self._cpu_ns, time.process_time_ns()
        return self._cpu_ns - before

    def account(self, *told: Any) -> None:
        """A step's account where nothing is exchanged: :meth:`done`'s numbers by their place, in its order.

        It is kept for a moment, so that several travel together.
        """
        if self.over or self.ended:
            return
        if self._gathering_failed is not None:
            raise self._lost(self._gathering_failed)
        accounts = self._accounts
        accounts.append((self.step, *told))
        if len(accounts) == 1:
            self._wake_gathering()
        # Nobody else says when to save and to end.
        self.step += 1
        if self.saves_every and self.step % self.saves_every == 0:
            self.save_wanted = True
        if self.until is not None and self.step >= self.until:
            self.over = True

    def _wake_gathering(self) -> None:
        if self._gathering is None:
            self._gathering = threading.Event()
            threading.Thread(target=self._gather, args=(self._gathering,), name="paceline", daemon=True).start()
        self._gathering.set()

    def _gather(self, wanted: threading.Event) -> None:
        while not self.ended:
            wanted.wait()
            wanted.clear()
            time.sleep(_GATHER_S)
            try:
                self._send_accounts()
            except OSError as error:
                self._gathering_failed = error  # for the script's thread, which can end the script
                return

    def _send_accounts(self) -> None:
        with self._sending:
            accounts = [self._accounts.popleft() for _ in range(len(self._accounts))]
            if accounts and not self.ended:
                # Asking for it in each step would cost more than the account itself.
                cpu_ns = self._used_cpu_ns() // len(accounts)
                body = b"".join([ACCOUNT.pack(*account[:6], cpu_ns, *account[6:]) for account in accounts])
                self._socket.sendall(HEADER.pack(STEPS, len(body)) + body)

    def _flush(self) -> None:
        try:
            self._send_accounts()
        except OSError as error:
            raise self._lost(error) from None

    def report(self, **values: float) -> None:
        """Figures for the record. ``loss`` and ``accuracy`` are the run's own; others are kept by their names."""
        if "step" in values:
            raise AttachError("`step` is the run's own number: report it by another name")
        if self.ended:
            return
        self._flush()
        # JSON has no word for these; the protocol says null.
        numbers = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._send(REPORT, _document({**numbers, "step": self.step}))

    # Saving and leaving.

    def save(self, kept: bytes) -> None:
        """Hands over what shall be kept, with the parameters that lie in the memory; waits until it is written."""
        self._flush()
        for first in range(0, len(kept), PIECE):
            self._send(PART, kept[first : first + PIECE])
        self._send(SAVED, SAVED_BODY.pack(self.step, len(kept)))
        flags, self.scale = GO_BODY.unpack(self._wait(GO))
        self.save_wanted = False
        self.over = self.over or bool(flags & IS_OVER)

    def poll(self) -> None:
        """Sees what the rank has said meanwhile (``OVER``, ``SAVE``), without waiting."""
        while not self.ended and (self._unread or self._poll.poll(0)):
            kind, body = self._receive()
            if not self._meanwhile(kind, body):
                raise self._unexpected(kind, body, "nothing")
        self._tell_arrived()

    def leave(self) -> None:
        """Ends the script's part of the run: the final parameters lie in the memory. Also called when Python ends."""
        if self.ended:
            return
        if self.before_leave is not None:
            self.before_leave()
        self._flush()
        self._send(LEAVE)
        self._wait(BYE)
        self._close()

    def fault(self, message: str, detail: str = "") -> None:
        """Ends the run: this script cannot go on."""
        if self.ended:
            return
        try:
            self._send(FAULT, _document({"message": message, "detail": detail[-(1 << 20) :]}))
        except (OSError, RankLost):
            pass  # the rank is gone: nobody is left to be told
        self._close()

    def _close(self) -> None:
        self.ended = True
        self._socket.close()

    def forked(self) -> None:
        """In a child process: the connection is the parent's alone."""
        self.ended = True
        self._accounts.clear()
        self._sending = threading.Lock()
        self._socket.close()

    # Frames.

    def _send(self, kind: int, body: bytes = b"") -> None:
        self._send_frames(HEADER.pack(kind, len(body)) + body)

    def _send_frames(self, frames: bytes) -> None:
        self._exit_code = None
        if self.ended:
            raise AttachError("this process does not take part in the run any more")
        try:
            with self._sending:
                self._socket.sendall(frames)
        except OSError as error:
            raise self._lost(error) from None

    def _wait(self, wanted: int) -> bytes:
        while True:
            kind, body = self._receive()
            if kind == wanted:
                return body
            if not self._meanwhile(kind, body):
                raise self._unexpected(kind, body, NAMES[wanted])
            if not self._unread:
                self._tell_arrived()

    def _tell_arrived(self) -> None:
        if self.arrived and self.on_arrived is not None:
            self.on_arrived()

    def _meanwhile(self, kind: int, body: bytes) -> bool:
        """Notes a frame that may come at any time; whether it was one."""
        if kind == ARRIVED:
            first, length = ARRIVED_BODY.unpack(body)
            self.arrived.append((first, length))
            return True
        if kind == OVER:
            self.over = True
        elif kind == SAVE:
            self.save_wanted = True
        else:
            return False
        return True

    def _receive(self) -> Tuple[int, bytes]:
        kind, length = HEADER.unpack(self._read(HEADER.size))
        return kind, self._read(self._checked(kind, length))

    def _receive_with_descriptors(self) -> Tuple[int, bytes, List[int]]:
        try:
            header, descriptors, _, _ = socket.recv_fds(self._socket, HEADER.size, 4)
        except OSError as error:
            raise self._lost(error) from None
        if not header:
            raise self._lost(None)
        header += self._read(HEADER.size - len(header))
        kind, length = HEADER.unpack(header)
        return kind, self._read(self._checked(kind, length)), list(descriptors)

    def _checked(self, kind: int, length: int) -> int:
        if kind not in NAMES or length > BODY_LIMIT:
            raise self._protest(f"the rank sent a frame of kind {kind} with {length} bytes, which is not in the protocol")
        return length

    def _read(self, length: int) -> bytes:
        unread = self._unread
        while len(unread) < length:
            try:
                data = self._socket.recv(min(max(length - len(unread), 1 << 12), 1 << 20))
            except OSError as error:
                raise self._lost(error) from None
            if not data:
                raise self._lost(None)
            unread += data
        data = bytes(unread[:length])
        del unread[:length]
        return data

    def _unexpected(self, kind: int, body: bytes, wanted: str) -> SystemExit:
        if kind == REFUSED:
            self._close()
            return RankLost(f"the run cannot go on with this script: {json.loads(body)['message']}")
        return self._protest(f"the rank said {NAMES[kind]} where {wanted} was due")

    def _protest(self, message: str) -> SystemExit:
        self.fault(message)
        return RankLost(message)

    def _lost(self, error: Optional[OSError]) -> SystemExit:
        """The rank has gone. It may have said why before."""
        refusal = None if error is None else self._last_words()
        self._close()
        if refusal is not None:
            return RankLost(f"the run cannot go on with this script: {refusal}")
        rank = getattr(self, "rank", os.environ.get("PACELINE_RANK", "?"))
        return RankLost(f"rank {rank} has ended; this script was its compute device and ends too")

    def _last_words(self) -> Optional[str]:
        """The reason in a ``REFUSED`` that lies unread in the socket."""
        try:
            self._socket.setblocking(False)
            data = bytes(self._unread) + self._socket.recv(1 << 20)
        except OSError:
            return None
        while len(data) >= HEADER.size:
            kind, length = HEADER.unpack_from(data)
            body, data = data[HEADER.size : HEADER.size + length], data[HEADER.size + length :]
            if kind == REFUSED and len(body) == length:
                return str(json.loads(body)["message"])
        return None


def attach(
    tensors: Sequence[Tuple[str, Sequence[int]]],
    *,
    framework: str = "python",
    optimizer: Optional[Dict[str, Any]] = None,
    arrivals: bool = False,
) -> Optional[Attachment]:
    """Attaches this script to the rank that started it; ``None`` if it was started alone.

    :param tensors: names and shapes of the parameters, in the model's order.
    :param framework: what computes, for the record.
    :param optimizer: the optimiser's kind and settings (``docs/attach.md``), for servers that run it.
    :param arrivals: whether to hear of each part of the mean gradient as soon as it is there (:attr:`Attachment.arrived`).
    """
    global _attachment
    if _attachment is not None:
        raise AttachError("this script has attached already: a run has one model")
    if _descriptor is None or _process != os.getpid():
        return None
    try:
        if not stat.S_ISSOCK(os.fstat(_descriptor).st_mode):
            raise OSError
    except OSError:
        raise AttachError(
            f"PACELINE_ATTACH says descriptor {_descriptor}, which is not an open socket: "
            "start the script by `paceline train --script`, or unset PACELINE_ATTACH to run it alone"
        ) from None
    connection = socket.socket(fileno=_descriptor)
    connection.setblocking(True)
    _die_with_rank()
    hello = {
        "protocol": PROTOCOL,
        "package": __version__,
        "framework": framework,
        "tensors": [{"name": name, "shape": list(shape)} for name, shape in tensors],
        "optimizer": optimizer,
        "arrivals": arrivals,
    }
    link = Attachment(connection, hello)
    _attachment = link
    _watch(link)
    return link


def _die_with_rank() -> None:
    """Lets the kernel end this process when the rank is killed, wherever it is then. Elsewhere than on Linux, the rank does."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (ImportError, OSError, AttributeError):
        pass


def started_by_rank() -> bool:
    """Whether a rank has started this script."""
    return _descriptor is not None and _process == os.getpid()


def rank_and_workers() -> Tuple[int, int]:
    """This script's rank and the number of workers, before it attaches too; 0 and 1 if it was started alone."""
    if _attachment is not None:
        return _attachment.rank, _attachment.workers
    if _descriptor is None:
        return 0, 1
    return int(os.environ.get("PACELINE_RANK", "0")), int(os.environ.get("PACELINE_WORKERS", "1"))


def _document(value: Dict[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


def _watch(link: Attachment) -> None:
    """Tells the rank how the script ends: `LEAVE` when it is done, `FAULT` when it fails."""
    excepthook, leave = sys.excepthook, sys.exit

    def failed(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        last_line = traceback.format_exception_only(kind, error)[-1].strip()
        link.fault(last_line, "".join(traceback.format_exception(kind, error, trace)))
        excepthook(kind, error, trace)

    def leaving(code: Any = None) -> Any:
        link._exit_code = code  # forgotten if the script goes on after all
        leave(code)

    def ending() -> None:
        if link._exit_code not in (None, 0, False):
            link.fault(f"the script ended itself: sys.exit({link._exit_code!r})")
        try:
            link.leave()
        except BaseException as error:  # Python ignores what an exit function raises
            if not isinstance(error, RankLost):
                link.fault(f"{type(error).__name__}: {error}", traceback.format_exc())
                traceback.print_exc()
            else:
                print(error.code, file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    sys.excepthook = failed
    sys.exit = leaving
    atexit.register(ending)


def _adopt() -> Optional[int]:
    """Takes the descriptor out of the environment, so that no other program inherits it."""
    text = os.environ.pop("PACELINE_ATTACH", None)
    if text is None:
        return None
    if not text.isdecimal():
        raise AttachError(f"PACELINE_ATTACH is {text!r}, which is not the number of a descriptor")
    try:
        os.set_inheritable(int(text), False)
    except OSError:
        pass  # `attach` says what is wrong with it
    return int(text)


def _forked() -> None:
    global _descriptor
    if _attachment is not None:
        _attachment.forked()
    elif _descriptor is not None:
        try:
            os.close(_descriptor)
        except OSError:
            pass
    _descriptor = None


_attachment: Optional[Attachment] = None
_process = os.getpid()
_descriptor: Optional[int] = _adopt()
os.register_at_fork(after_in_child=_forked)
