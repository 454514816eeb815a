"""A small residual network on images that lie in folders, one for each class. Run it alone, or by

    paceline train --script images.py --workers 4 --strategy ring-allreduce -- --data images --epochs 2

The six lines that make it a worker end in `# paceline`. A folder that is not there is filled with made-up images.
"""

import argparse
import os
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import paceline.torch as pace  # paceline

SIDE = 40  # dots of a stored image
CROP = 32  # dots of what the network sees
COLOURS = {"amber": (255, 191, 0), "coral": (255, 127, 80), "jade": (0, 168, 107), "navy": (40, 60, 160)}


class ImageFolder(Dataset):
    """Images `FOLDER/CLASS/NAME.ppm`."""

    def __init__(self, folder, transform):
        self.classes = sorted(path.name for path in Path(folder).iterdir() if path.is_dir())
        self.files = [(p, n) for n, name in enumerate(self.classes) for p in sorted(Path(folder, name).glob("*.ppm"))]
        self.transform = transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, label = self.files[index]
        return self.transform(read_ppm(path)), label


def read_ppm(path):
    kind, size, largest, dots = path.read_bytes().split(b"\n", 3)
    assert (kind, largest) == (b"P6", b"255"), f"{path} is no PPM image of 8 bits"
    width, height = map(int, size.split())
    return torch.frombuffer(bytearray(dots), dtype=torch.uint8).view(height, width, 3).permute(2, 0, 1)


def training_view(image):
    """A random part of the image, perhaps mirrored."""
    top, left = torch.randint(0, SIDE - CROP + 1, (2,)).tolist()
    image = normalise(image)[:, top : top + CROP, left : left + CROP]
    return image.flip(2) if torch.rand(()) < 0.5 else image


def test_view(image):
    edge = (SIDE - CROP) // 2
    return normalise(image)[:, edge : edge + CROP, edge : edge + CROP]


def normalise(image):
    return (image.float() / 255 - 0.45) / 0.25


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.short(x))


def resnet(classes):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        Block(8, 8, 1),
        Block(8, 16, 2),
        Block(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


def make_images(folder, count, seed):
    """Bright discs of each class's colour on noise."""
    generator = torch.Generator().manual_seed(seed)
    unfinished = f"{folder}.{os.getpid()}"  # several workers may make them at the same time
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    for name, colour in COLOURS.items():
        Path(unfinished, name).mkdir(parents=True)
        for number in range(count):
            image = torch.randint(0, 160, (SIDE, SIDE, 3), generator=generator)
            row, column, radius = torch.randint(12, 28, (3,), generator=generator).tolist()
            disc = (y - row) ** 2 + (x - column) ** 2 < (radius / 2) ** 2
            image[disc] = (image[disc] + torch.tensor(colour)) // 2
            dots = image.to(torch.uint8).numpy().tobytes()
            Path(unfinished, name, f"{number:04}.ppm").write_bytes(b"P6\n%d %d\n255\n" % (SIDE, SIDE) + dots)
    try:
        os.rename(unfinished, folder)
    except OSError:
        shutil.rmtree(unfinished)


def validate(model, loader):
    model.eval()
    loss, correct, count = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            output = model(x)
            loss += F.cross_entropy(output, y, reduction="sum").item()
            correct += (output.argmax(1) == y).sum().item()
            count += len(y)
    return loss / count, correct / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="images", help="a folder with the folders train and val")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--workers", type=int, default=2, help="processes that load images")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    for part, count in (("train", 200), ("val", 50)):
        if not Path(args.data, part).exists():
            Path(args.data).mkdir(parents=True, exist_ok=True)
            make_images(f"{args.data}/{part}", count, seed=count)
    train_set = ImageFolder(f"{args.data}/train", training_view)
    val_set = ImageFolder(f"{args.data}/val", test_view)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=args.workers)
    val_loader = DataLoader(val_set, 100)
    model = resnet(len(train_set.classes)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay, nesterov=True
    )
    run = pace.attach(model, optimizer)  # paceline
    train_loader = run.shard(train_loader)  # paceline
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(train_loader))
    run.keep(scheduler=scheduler)  # paceline

    for epoch in run.epochs(args.epochs):  # paceline
        model.train()
        for batch, (x, y) in enumerate(train_loader):
            loss = F.cross_entropy(model(x.to(memory_format=torch.channels_last)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if batch % 10 == 0:
                print(f"epoch {epoch}, batch {batch} of {len(train_loader)}: loss {loss.item():.4f}")
        loss, accuracy = validate(model, val_loader)
        print(f"epoch {epoch}: validation loss {loss:.4f}, accuracy {100 * accuracy:.1f}%")
        run.report(loss=loss, accuracy=accuracy)  # paceline


if __name__ == "__main__":
    main()
