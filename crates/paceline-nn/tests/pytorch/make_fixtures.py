"""Records what PyTorch computes for the networks of `../pytorch.rs`, in float64 on the CPU.

Made with torch 2.13.0 and numpy 2.4.6 on Python 3.11. To rerun (writes the JSON files beside this script,
in some minutes; names of recordings choose among them):

    pip install torch==2.13.0 numpy==2.4.6
    python make_fixtures.py [NAME ...]

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
import sys

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
# Weights and scores of the early exits of the last forward pass.
early = []


def relu(x):
    """A ReLU that notes how near its inputs come to the kink."""
    v = x.detach()
    nearest.append((v.abs().min() / v.square().mean().sqrt()).item())
    return F.relu(x)


def max_pool(x, size=2, pad=0):
    """A pooling of ReLU outputs, stride 2, that notes how near the two largest of a window come."""
    v = F.pad(x.detach(), (pad,) * 4)
    first, second = v.unfold(2, size, 2).unfold(3, size, 2).flatten(-2).topk(2).values.unbind(-1)
    # Where all are 0, the ReLU before lets no gradient through anyway.
    nearest.append(((first - second)[first > 0].min() / v.square().mean().sqrt()).item())
    return F.max_pool2d(x, size, 2, pad)


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


class Bottleneck(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, 4 * channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * channels)
        self.downsample = None
        if stride != 1 or inputs != 4 * channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, 4 * channels, 1, stride, bias=False), nn.BatchNorm2d(4 * channels)
            )

    def forward(self, x):
        skip = x if self.downsample is None else self.downsample(x)
        x = relu(self.bn1(self.conv1(x)))
        x = relu(self.bn2(self.conv2(x)))
        return relu(self.bn3(self.conv3(x)) + skip)


class ResNet50(nn.Module):
    flattened = {}

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inputs = 64
        for stage, (channels, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)], 1):
            stack = []
            for i in range(blocks):
                stack.append(Bottleneck(inputs, channels, 2 if stage > 1 and i == 0 else 1))
                inputs = 4 * channels
            setattr(self, f"layer{stage}", nn.Sequential(*stack))
        self.fc = nn.Linear(2048, CLASSES)

    def forward(self, x):
        x = max_pool(relu(self.bn1(self.conv1(x))), 3, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class Grouped(nn.Module):
    flattened = {"fc": (8, 3, 4)}

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 8, 3, 2, padding=1, groups=4)
        self.conv3 = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.fc = nn.Linear(96, CLASSES)

    def forward(self, x):
        return self.fc(relu(self.conv3(relu(self.conv2(relu(self.conv1(x)))))).flatten(1))


class Conv1d(nn.Module):
    """On a series: N, channels, 1, steps."""

    flattened = {}

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(3, 64, 5, padding=2)
        self.conv2 = nn.Conv1d(64, 128, 3, 2, padding=1)
        self.conv3 = nn.Conv1d(128, 128, 3, 2, padding=1)
        self.fc = nn.Linear(128, CLASSES)

    def forward(self, x):
        x = relu(self.conv3(relu(self.conv2(relu(self.conv1(x.squeeze(2)))))))
        return self.fc(x.mean(2))


class Recurrent(nn.Module):
    """On an image, row by row; answers after the last one."""

    flattened = {}

    def __init__(self, kind):
        super().__init__()
        self.rnn = kind(4 * 3, 128, batch_first=True)
        self.fc = nn.Linear(128, CLASSES)

    def forward(self, x):
        rows = x.permute(0, 2, 3, 1).flatten(2)
        return self.fc(self.rnn(rows)[0][:, -1])


class Positions(nn.Module):
    def __init__(self, steps, width):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(steps, width))

    def forward(self, x):
        return x + self.weight


class TransformerBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        split = lambda v: v.unflatten(2, (self.heads, -1)).transpose(1, 2)
        q, k, v = (split(part) for part in self.qkv(self.norm1(x)).chunk(3, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Transformer(nn.Module):
    """On tokens an answer at every position, on a series one after the last step."""

    flattened = {}
    # Tables, which both sides write row by row.
    tables = ("embedding.weight", "positions.weight")

    def __init__(self, steps, channels):
        super().__init__()
        self.channels = channels
        if channels == 1:
            self.embedding = nn.Embedding(CLASSES, 128)
        else:
            self.projection = nn.Linear(channels, 128)
        self.positions = Positions(steps, 128)
        self.blocks = nn.ModuleList(TransformerBlock(128, 4) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, CLASSES)

    def forward(self, x):
        x = x.squeeze(2).transpose(1, 2)
        x = self.embedding(x.squeeze(2).long()) if self.channels == 1 else self.projection(x)
        x = self.positions(x)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x).flatten(0, 1) if self.channels == 1 else self.head(x[:, -1])


class Sign(torch.autograd.Function):
    """1 from 0 on, -1 below; the gradient is passed straight through between -1 and 1."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0).to(x)

    @staticmethod
    def backward(context, slope):
        (x,) = context.saved_tensors
        return slope * (x.abs() <= 1)


def sign(x):
    """A sign that notes how near its inputs come to where it, or its gradient, jumps."""
    v = x.detach().abs()
    nearest.append((torch.minimum(v, (v - 1).abs()).min() / v.square().mean().sqrt()).item())
    return Sign.apply(x)


class Device(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 3 * 4, CLASSES)

    def forward(self, x):
        x = sign(self.bn(self.conv(x)))
        return x, self.fc(x.flatten(1))


class Exits(nn.Module):
    """Three devices that see a third of the rows each; exits by their largest scores, by their mean features, and by
    the channels of all."""

    flattened = {f"device{i}.fc": (4, 3, 4) for i in range(3)} | {"edge": (4, 3, 4), "cloud": (12, 3, 4)}

    def __init__(self):
        super().__init__()
        self.device0, self.device1, self.device2 = Device(), Device(), Device()
        self.edge, self.cloud = nn.Linear(48, CLASSES), nn.Linear(144, CLASSES)

    def forward(self, x):
        devices = [self.device0, self.device1, self.device2]
        told = [device(x[:, :, 3 * i : 3 * i + 3]) for i, device in enumerate(devices)]
        scores = torch.stack([scores for _, scores in told])
        first, second = scores.detach().topk(2, 0).values.unbind(0)
        nearest.append(((first - second).min() / scores.detach().square().mean().sqrt()).item())
        features = [features for features, _ in told]
        mean = self.edge(torch.stack(features).mean(0).flatten(1))
        early[:] = [(0.3, scores.amax(0)), (0.5, mean)]
        return self.cloud(torch.cat(features, 1).flatten(1))


def loss_of(outputs, labels):
    """What training minimises: early exits add their loss, weighted."""
    weighted = [weight * F.cross_entropy(scores, labels) for weight, scores in early]
    early.clear()
    return F.cross_entropy(outputs, labels) + sum(weighted)


def ours(name):
    """A parameter's name in Paceline: recurrent networks here have one layer."""
    return name.removesuffix("_l0")


def to_ours(model, name, tensor):
    """A parameter (or its gradient) in Paceline's layout."""
    if name in getattr(model, "tables", ()):
        return tensor
    chw = model.flattened.get(name.removesuffix(".weight"))
    if chw and tensor.dim() == 2:
        return tensor.reshape(-1, *chw).permute(2, 3, 1, 0).reshape(-1, tensor.shape[0])
    return tensor.permute({1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 3, 1, 0)}[tensor.dim()])


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
    for name, p in model.named_parameters():
        weight = name.rsplit(".", 1)[1].startswith("weight")
        if weight:
            # All sizes of the layer's last weight but the last, in Paceline's layout.
            inputs = to_ours(model, name, p).shape[:-1]
        if inputs:
            middle, spread = 0.0, 1.0 / np.sqrt(float(np.prod(inputs)))
        elif weight:
            middle, spread = 0.25, 0.025
        else:
            middle, spread = np.where(np.arange(p.numel()) % 2 == 0, 0.5, -0.5), 0.025
        values = middle + spread * uniform(f"param/{ours(name)}", p.numel())
        p.data = from_ours(model, name, single(values), p.shape)


def batch(samples, h, w, c, number):
    tokens = h == 1 and c == 1
    if tokens:
        pixels = (bits(f"input/{number}", samples * w) % np.uint64(CLASSES)).astype(np.float64)
    else:
        pixels = single(uniform(f"input/{number}", samples * h * w * c))
    pixels = pixels.reshape(samples, h, w, c)
    answers = samples * w if tokens else samples
    labels = (bits(f"label/{number}", answers) % np.uint64(CLASSES)).astype(np.int64)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)


def clear_batch(model, shape, number, clear):
    """The first batch from `number` on that leaves no unit near a tie."""
    while True:
        nearest.clear()
        with torch.no_grad():
            # On a copy: the pass would count in the running statistics.
            copy.deepcopy(model)(batch(*shape, number)[0])
        if min(nearest, default=1.0) >= clear:
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


def record(model, shape, optimiser, steps=STEPS, samples=BATCH, clear=CLEAR, **settings):
    """Training steps, each on its own batch, then a further batch in evaluation mode."""
    model = model().double()
    fill(model)
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    optim = kinds[optimiser](model.parameters(), **settings)
    model.train()
    recorded, number = [], 0
    for _ in range(steps):
        number = clear_batch(model, [samples, *shape], number, clear)
        pixels, labels = batch(samples, *shape, number)
        optim.zero_grad()
        loss = loss_of(model(pixels), labels)
        loss.backward()
        grads = {ours(n): summary(ours(n), to_ours(model, n, p.grad)) for n, p in model.named_parameters()}
        recorded.append({"batch": number, "loss": loss.item(), "grads": grads})
        optim.step()
        number += 1
    params = {ours(n): summary(ours(n), to_ours(model, n, p)) for n, p in model.named_parameters()}
    if len(params) > 100:
        # The file would be large, and the optimisers are compared elsewhere.
        params = {}
    running = {n: b for n, b in model.named_buffers() if not n.endswith("num_batches_tracked")}
    state = {n: summary(n, b) for n, b in running.items()}
    model.eval()
    pixels, labels = batch(samples, *shape, number)
    with torch.no_grad():
        outputs = model(pixels)
    loss = loss_of(outputs, labels).item()
    evaluation = {"batch": number, "loss": loss, "outputs": outputs.flatten().tolist()}
    return {
        "torch": torch.__version__,
        "input": shape,
        "samples": samples,
        "classes": CLASSES,
        "optimiser": {"name": optimiser, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0} | settings,
        "steps": recorded,
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
        # 48x48, so that the last stage has more than one pixel; the rest, so that some batch is clear.
        "resnet50": (ResNet50, [48, 48, 3], sgd | {"steps": 1, "samples": 2, "clear": 1e-5}),
        "grouped": (Grouped, [6, 7, 2], sgd),
        "exits": (Exits, [9, 4, 2], sgd),
        "conv1d": (Conv1d, [1, 19, 3], sgd),
        "gru": (lambda: Recurrent(nn.GRU), [7, 4, 3], sgd),
        "lstm": (lambda: Recurrent(nn.LSTM), [7, 4, 3], sgd),
        "transformer": (lambda: Transformer(37, 1), [1, 37, 1], sgd),
        "transformer-series": (lambda: Transformer(9, 5), [1, 9, 5], sgd | {"steps": 1}),
        "tiny-sgd": (Tiny, [4, 3, 2], {"optimiser": "sgd", "lr": 0.1, "weight_decay": 0.01}),
        "tiny-nesterov": (Tiny, [4, 3, 2], sgd | {"nesterov": True, "weight_decay": 0.01}),
        "tiny-adam": (Tiny, [4, 3, 2], {"optimiser": "adam", "lr": 0.01}),
        "tiny-adam-decay": (Tiny, [4, 3, 2], {"optimiser": "adam", "lr": 0.01, "weight_decay": 0.01}),
        "tiny-adamw": (Tiny, [4, 3, 2], {"optimiser": "adamw", "lr": 0.01, "weight_decay": 0.01}),
    }
    for name, (model, shape, settings) in cases.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        path = pathlib.Path(__file__).parent / f"{name}.json"
        path.write_text(text(record(model, shape, **settings)) + "\n")


if __name__ == "__main__":
    main()
