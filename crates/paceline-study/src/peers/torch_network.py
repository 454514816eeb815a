"""The networks in PyTorch: the layers of Paceline's `mlp` and `lenet`."""

import torch
from torch import nn
from torch.nn import functional


def network(name, shape, classes):
    """A network for samples of this shape: channels, height, width."""
    channels, height, width = shape
    if name == "mlp":
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * height * width, 256), nn.ReLU(),
            nn.Linear(256, 128), nn.ReLU(),
            nn.Linear(128, classes),
        )
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512), nn.ReLU(),
        nn.Linear(512, classes),
    )


def tensors(samples, classes):
    """Arrays of a dataset as PyTorch has them: channels before height and width."""
    samples = torch.from_numpy(samples).permute(0, 3, 1, 2)
    return samples.clone(memory_format=torch.contiguous_format), torch.from_numpy(classes)


def evaluate(model, x, y, batch=500):
    """Sums over samples: loss, right answers, samples."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        for x, y in zip(x.split(batch), y.split(batch)):
            answers = model(x)
            sums += torch.tensor([
                functional.cross_entropy(answers, y, reduction="sum").item(),
                (answers.argmax(1) == y).sum().item(),
                len(y),
            ])
    return sums
