"""What CUDA does with memory that a rank and a script share: one JSON line per fact. Needs a GPU and torch.

Each part stands alone: one that fails says so, and the others follow.
"""

import ctypes
import fcntl
import json
import mmap
import os
import sys
import time
import traceback

import torch

SIZE = 100 << 20
F_ADD_SEALS, SEALS = 1033, 1 | 2 | 4  # seal, shrink, grow


def say(name, **facts):
    print(json.dumps({"part": name, **facts}), flush=True)


def part(function):
    try:
        function()
    except Exception as error:  # the next part may well work
        say(function.__name__, failed=f"{type(error).__name__}: {error}", trace=traceback.format_exc()[-600:])


def seconds(action, times=10):
    """Median time of an action, until the GPU has done it."""
    found = []
    for _ in range(times):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        action()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begun)
    return sorted(found)[times // 2]


def host_seconds(action, times=1000):
    """Mean time that the host spends in an action."""
    begun = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - begun) / times


def shared(size=SIZE):
    descriptor = os.memfd_create("probe", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, F_ADD_SEALS, SEALS)
    return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.float32)


def machine():
    properties = torch.cuda.get_device_properties(0)
    say("machine", torch=torch.__version__, cuda=torch.version.cuda, gpu=properties.name, processors=properties.multi_processor_count,
        memory=properties.total_memory, cores=os.cpu_count(), usable=len(os.sched_getaffinity(0)))  # fmt: skip


def management():
    library = ctypes.CDLL("libnvidia-ml.so.1")
    began = library.nvmlInit_v2()
    lies = sorted({line.split()[-1] for line in open("/proc/self/maps") if "nvidia-ml" in line})
    say("management", init=began, lies=lies)


def copies():
    on_gpu = torch.empty(SIZE // 4, device="cuda")
    plain, registered = shared(), shared()
    plain.zero_(), registered.zero_()
    begun = time.perf_counter()
    code = int(torch.cuda.cudart().cudaHostRegister(registered.data_ptr(), SIZE, 0))
    took = time.perf_counter() - begun
    facts = {"code": code, "register_s": took, "pinned": registered.is_pinned()}
    for name, host in (("plain", plain), ("registered", registered)):
        facts[f"{name}_down_gb_s"] = SIZE / 1e9 / seconds(lambda: host.copy_(on_gpu, non_blocking=True))
        facts[f"{name}_up_gb_s"] = SIZE / 1e9 / seconds(lambda: on_gpu.copy_(host, non_blocking=True))
    facts["asynchronous_s"] = host_seconds(lambda: registered.copy_(on_gpu, non_blocking=True), 5)
    torch.cuda.synchronize()
    # As many pieces as ResNet-50 has tensors.
    pieces = 161
    length = SIZE // 4 // pieces
    parts = [(registered[n * length : (n + 1) * length], on_gpu[n * length : (n + 1) * length]) for n in range(pieces)]
    facts["pieces_down_s"] = seconds(lambda: [h.copy_(d, non_blocking=True) for h, d in parts])
    facts["pieces_up_s"] = seconds(lambda: [d.copy_(h, non_blocking=True) for h, d in parts])
    facts["pieces_scaled_down_s"] = seconds(lambda: [h.copy_(d.to(torch.float32) * 0.5, non_blocking=True) for h, d in parts])
    flat, own = torch.empty_like(on_gpu), [d.clone() for _, d in parts]
    views = [flat[n * length : (n + 1) * length] for n in range(pieces)]
    facts["gather_s"] = seconds(lambda: torch._foreach_copy_(views, own))
    torch.cuda.synchronize()
    facts["gather_host_s"] = host_seconds(lambda: torch._foreach_copy_(views, own), 20)
    half = [d.to(torch.bfloat16) for d in own]
    facts["gather_bfloat16_s"] = seconds(lambda: torch._foreach_copy_(views, half))
    say("copies", **facts)


def events():
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    tensor = torch.ones(10, device="cuda")
    event.record(stream)
    one = torch.ones(1, device="cuda")
    say("events", record_s=host_seconds(lambda: event.record(stream)), query_s=host_seconds(event.query),
        make_s=host_seconds(lambda: torch.cuda.Event().record(stream)), wait_s=host_seconds(lambda: stream.wait_event(event)),
        keep_s=host_seconds(lambda: tensor.record_stream(stream)), launch_s=host_seconds(lambda: tensor.mul_(1.0)),
        item_s=seconds(lambda: one.item(), 100), current_stream_s=host_seconds(torch.cuda.current_stream))  # fmt: skip


def busy_pair():
    """Whether copies down and up run at the same time, and beside computing."""
    a, b = torch.empty(SIZE // 4, device="cuda"), torch.empty(SIZE // 4, device="cuda")
    there, back = shared(), shared()
    for host in (there, back):
        host.zero_()
        torch.cuda.cudart().cudaHostRegister(host.data_ptr(), SIZE, 0)
    down, up = torch.cuda.Stream(), torch.cuda.Stream()

    def both():
        with torch.cuda.stream(down):
            there.copy_(a, non_blocking=True)
        with torch.cuda.stream(up):
            b.copy_(back, non_blocking=True)

    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def compute():
        for _ in range(4):
            matrix @ matrix

    say("busy_pair", both_s=seconds(both), compute_s=seconds(compute), together_s=seconds(lambda: (both(), compute())))


if not torch.cuda.is_available():
    say("machine", failed=f"torch {torch.__version__} finds no CUDA")
    sys.exit(1)
for one in (machine, management, copies, events, busy_pair):
    part(one)
