"""Digits for the examples: MNIST's files from a folder, or digits that are made here."""

import gzip
import struct
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

# Seven rows of five dots for each digit.
GLYPHS = """
01110 10001 10011 10101 11001 10001 01110
00100 01100 00100 00100 00100 00100 01110
01110 10001 00001 00110 01000 10000 11111
11111 00010 00100 00010 00001 10001 01110
00010 00110 01010 10010 11111 00010 00010
11111 10000 11110 00001 00001 10001 01110
00110 01000 10000 11110 10001 10001 01110
11111 00001 00010 00100 01000 01000 01000
01110 10001 10001 01110 10001 10001 01110
01110 10001 10001 01111 00001 00010 01100
"""


def digits(folder, train):
    """Images of 28 × 28 dots and their labels; without a folder 6,000 (or 1,000) that are made up."""
    if folder:
        stem = "train" if train else "t10k"
        images = read_idx(folder, f"{stem}-images-idx3-ubyte").float() / 255
        labels = read_idx(folder, f"{stem}-labels-idx1-ubyte").long()
    else:
        images, labels = make(6000 if train else 1000, seed=1 if train else 2)
    return TensorDataset((images.unsqueeze(1) - 0.13) / 0.31, labels)


def read_idx(folder, name):
    path = Path(folder) / name
    data = path.read_bytes() if path.exists() else gzip.open(f"{path}.gz").read()
    dimensions = data[3]
    shape = struct.unpack(f">{dimensions}I", data[4 : 4 + 4 * dimensions])
    return torch.frombuffer(bytearray(data[4 + 4 * dimensions :]), dtype=torch.uint8).view(shape)


def make(count, seed):
    """Glyphs of different place, size and brightness, with noise."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return torch.randint(low, high, (count,), generator=generator).tolist()

    rows = [[[float(dot) for dot in row] for row in line.split()] for line in GLYPHS.split("\n") if line]
    glyphs = torch.tensor(rows)
    labels = draw(0, 10)
    images = torch.rand(count, 28, 28, generator=generator) * 0.3
    for image, label, height, left, top in zip(images, labels, draw(2, 4), draw(1, 12), draw(1, 6)):
        big = glyphs[label].repeat_interleave(height, 0).repeat_interleave(3, 1)
        image[top : top + big.shape[0], left : left + big.shape[1]] += 0.7 * big
    return images, torch.tensor(labels)
