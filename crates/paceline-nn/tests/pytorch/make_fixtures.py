"""Records what PyTorch computes for the networks of `../pytorch.rs`, in float64 on the CPU.

Made with torch 2.13.0 and numpy 2.4.6 on Python 3.11. To rerun (writes the JSON files beside this script,
in less than a minute):

    pip install torch==2.13.0 numpy==2.4.6
    python make_fixtures.py

Parameters, inputs and labels are not stored: both sides make them from names with the same integer hash
(`bits`), in Paceline's layout: activations NHWC, convolutions [kernel height, kernel width, inputs,
outputs], dense layers [inputs, outputs] with the inputs flattened in NHWC order. The networks below are
written as one writes them for PyTorch (NCHW); `to_ours` and `from_ours` are the only places that know both
layouts. Every tensor is recorded as a summary: its norm, its sum, its dot products with four vectors and
sixteen of its elements, vectors and places made with the same hash.

The recordings are also held against single precision, where a ReLU or a pooling window whose inputs nearly
tie may fall either way; one such unit changes resnet20's gradients by percents, and everything after that
step. So batches with such a tie are passed over (`CLEAR`): each step records which batch it took.
"""

import copy
import json
import pathlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

BATCH, CLASSES, STEPS = 4, 10, 3
DOTS, ELEMENTS = 4, 16
# How far from a tie all units of a batch must be, relative to the layer's root mean square: over ten times
# the error of a single-precision forward pass of resnet20 with Winograd's convolutions.
CLEAR = 3e-5


def bits(name, count):
    """The first `count` 64-bit words of the stream `name`: splitmix64 seeded with FNV-1a of the name."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(name, count):
    """The stream as numbers from [-1, 1)."""
    return (bits(name, count) >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0


def single(values):
    """Rounded to float32, so that both precisions of the test start from the same point."""
    return values.astype(np.float32).astype(np.float64)


nearest = []


def relu(x):
    """A ReLU that notes how near its inputs come to the kink."""
    v = x.detach()
    nearest.append((v.abs().min() / v.square().mean().sqrt()).item())
    return F.relu(x)


def max_pool(x):
    """A 2x2 pooling of ReLU outputs that notes how near the two largest of a window come to each other."""
    v = x.detach()
    first, second = v.unfold(2, 2, 2).unfold(3, 2, 2).flatten(-2).topk(2).values.unbind(-1)
    # Where all four are 0, the ReLU before lets no gradient through anyway.
    nearest.append(((first - second)[first > 0].min() / v.square().mean().sqrt()).item())
    return F.max_pool2d(x, 2)


class Softmax(nn.Module):
    flattened = {"fc": (1, 28, 28)}

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(784, CLASSES)

    def forward(self, x):
        return self.fc(x.flatten(1))


class Mlp(nn.Module):
    flattened = {"fc1": (1, 28, 28)}

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 256), nn.Linear(256, 128), nn.Linear(128, CLASSES)

    def forward(self, x):
        return self.fc3(relu(self.fc2(relu(self.fc1(x.flatten(1))))))


class Tiny(nn.Module):
    """What the optimisers are compared on."""

    flattened = {"fc1": (2, 4, 3)}

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(24, 12), nn.Linear(12, CLASSES)

    def forward(self, x):
        return self.fc2(relu(self.fc1(x.flatten(1))))


class LeNet(nn.Module):
    flattened = {"fc1": (64, 7, 7)}

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.fc1, self.fc2 = nn.Linear(3136, 512), nn.Linear(512, CLASSES)

    def forward(self, x):
        x = max_pool(relu(self.conv1(x)))
        x = max_pool(relu(self.conv2(x)))
        return self.fc2(relu(self.fc1(x.flatten(1))))


class Block(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or inputs != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x):
        skip = x if self.downsample is None else self.downsample(x)
        return relu(self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))) + skip)


class ResNet20(nn.Module):
    flattened = {}

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(Block(16, 16, 1), Block(16, 16, 1), Block(16, 16, 1))
        self.layer2 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1), Block(32, 32, 1))
        self.layer3 = nn.Sequential(Block(32, 64, 2), Block(64, 64, 1), Block(64, 64, 1))
        self.fc = nn.Linear(64, CLASSES)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(relu(self.bn1(self.conv1(x))))))
        return self.fc(x.mean((2, 3)))


def to_ours(model, name, tensor):
    """A parameter (or its gradient) in Paceline's layout."""
    chw = model.flattened.get(name.removesuffix(".weight"))
    if chw and tensor.dim() == 2:
        return tensor.reshape(-1, *chw).permute(2, 3, 1, 0).reshape(-1, tensor.shape[0])
    return tensor.permute({1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}[tensor.dim()])


def from_ours(model, name, values, shape):
    """The parameter of PyTorch's `shape` whose values in Paceline's layout are `values`."""
    # The same walk over the places instead of the values says which value belongs where.
    places = to_ours(model, name, torch.arange(values.size).reshape(shape)).reshape(-1)
    tensor = torch.empty(values.size, dtype=torch.float64)
    tensor[places] = torch.from_numpy(values)
    return tensor.reshape(shape)


def fill(model):
    """Weights and biases within 1/√inputs. Batch norm's weights are near 1/4, its biases near 1/2 and
    -1/2 in turn: its ReLUs then have most of their input away from the kink, and still switch pixel by
    pixel."""
    weights = {n.removesuffix(".weight"): p for n, p in model.named_parameters() if n.endswith(".weight")}
    for name, p in model.named_parameters():
        layer, kind = name.rsplit(".", 1)
        weight = weights[layer]
        if weight.dim() > 1:
            middle, spread = 0.0, 1.0 / np.sqrt(float(weight[0].numel()))
        elif kind == "weight":
            middle, spread = 0.25, 0.025
        else:
            middle, spread = np.where(np.arange(p.numel()) % 2 == 0, 0.5, -0.5), 0.025
        values = middle + spread * uniform(f"param/{name}", p.numel())
        p.data = from_ours(model, name, single(values), p.shape)


def batch(h, w, c, number):
    pixels = single(uniform(f"input/{number}", BATCH * h * w * c)).reshape(BATCH, h, w, c)
    labels = (bits(f"label/{number}", BATCH) % np.uint64(CLASSES)).astype(np.int64)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)


def clear_batch(model, shape, number):
    """The first batch from `number` on that leaves no unit near a tie."""
    while True:
        nearest.clear()
        with torch.no_grad():
            # On a copy: the pass would count in the running statistics.
            copy.deepcopy(model)(batch(*shape, number)[0])
        if min(nearest, default=1.0) >= CLEAR:
            return number
        number += 1


def summary(name, values):
    v = values.detach().reshape(-1).numpy()
    picked = bits(f"element/{name}", ELEMENTS) % np.uint64(v.size)
    return {
        "norm": float(np.sqrt(np.sum(v * v))),
        "sum": float(np.sum(v)),
        "dots": [float(np.sum(v * uniform(f"dot{k}/{name}", v.size))) for k in range(DOTS)],
        "elements": [float(v[i]) for i in picked],
    }


def record(model, shape, optimiser, **settings):
    """Three training steps, each on its own batch, then a further batch in evaluation mode."""
    model = model().double()
    fill(model)
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    optim = kinds[optimiser](model.parameters(), **settings)
    model.train()
    steps, number = [], 0
    for _ in range(STEPS):
        number = clear_batch(model, shape, number)
        pixels, labels = batch(*shape, number)
        optim.zero_grad()
        loss = F.cross_entropy(model(pixels), labels)
        loss.backward()
        grads = {n: summary(n, to_ours(model, n, p.grad)) for n, p in model.named_parameters()}
        steps.append({"batch": number, "loss": loss.item(), "grads": grads})
        optim.step()
        number += 1
    params = {n: summary(n, to_ours(model, n, p)) for n, p in model.named_parameters()}
    running = {n: b for n, b in model.named_buffers() if not n.endswith("num_batches_tracked")}
    state = {n: summary(n, b) for n, b in running.items()}
    model.eval()
    pixels, labels = batch(*shape, number)
    with torch.no_grad():
        outputs = model(pixels)
    loss = F.cross_entropy(outputs, labels).item()
    evaluation = {"batch": number, "loss": loss, "outputs": outputs.flatten().tolist()}
    return {
        "torch": torch.__version__,
        "input": shape,
        "samples": BATCH,
        "classes": CLASSES,
        "optimiser": {"name": optimiser, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0} | settings,
        "steps": steps,
        "params": params,
        "state": state,
        "evaluation": evaluation,
    }


def text(value):
    """JSON with one tensor per line: a changed value shows up as one changed line."""
    nested = isinstance(value, dict) and any(isinstance(v, (dict, list)) for v in value.values())
    if nested and "norm" not in value:
        return "{" + ",\n".join(f"{json.dumps(k)}:{text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list) and any(isinstance(v, dict) for v in value):
        return "[" + ",\n".join(text(v) for v in value) + "]"
    return json.dumps(value, separators=(",", ":"))


def main():
    # One thread, so that sums are taken in one order and the files come out the same again.
    torch.set_num_threads(1)
    sgd = {"optimiser": "sgd", "lr": 0.05, "momentum": 0.9}
    cases = {
        "softmax": (Softmax, [28, 28, 1], sgd),
        "mlp": (Mlp, [28, 28, 1], sgd),
        "lenet": (LeNet, [28, 28, 1], sgd),
        "resnet20": (ResNet20, [32, 32, 3], sgd),
        "tiny-sgd": (Tiny, [4, 3, 2], {"optimiser": "sgd", "lr": 0.1, "weight_decay": 0.01}),
        "tiny-nesterov": (Tiny, [4, 3, 2], sgd | {"nesterov": True, "weight_decay": 0.01}),
        "tiny-adam": (Tiny, [4, 3, 2], {"optimiser": "adam", "lr": 0.01}),
        "tiny-adam-decay": (Tiny, [4, 3, 2], {"optimiser": "adam", "lr": 0.01, "weight_decay": 0.01}),
        "tiny-adamw": (Tiny, [4, 3, 2], {"optimiser": "adamw", "lr": 0.01, "weight_decay": 0.01}),
    }
    for name, (model, shape, settings) in cases.items():
        path = pathlib.Path(__file__).parent / f"{name}.json"
        path.write_text(text(record(model, shape, **settings)) + "\n")


if __name__ == "__main__":
    main()
