"""A convolutional network on handwritten digits. Run it alone, or by

    paceline train --script mnist.py --workers 4 -- --epochs 3

The six lines that make it a worker end in `# paceline`.
"""

import argparse

import torch
import torch.nn.functional as F
from digits import digits
from torch import nn

import paceline.torch as pace  # paceline


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(16 * 5 * 5, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = self.dropout(torch.flatten(x, 1))
        return self.fc2(F.relu(self.fc1(x)))


def train(args, model, loader, optimizer, epoch):
    model.train()
    for batch, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if batch % args.log_interval == 0:
            print(f"epoch {epoch}, batch {batch} of {len(loader)}: loss {loss.item():.4f}")
            if args.dry_run:
                break


def test(model, loader):
    model.eval()
    loss, correct, count = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            output = model(x)
            loss += F.cross_entropy(output, y, reduction="sum").item()
            correct += (output.argmax(1) == y).sum().item()
            count += len(y)
    print(f"test: loss {loss / count:.4f}, {correct} of {count} right")
    return loss / count, correct / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="a folder with MNIST's four files; without it, digits are made up")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--test-batch-size", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=20)
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train_loader = torch.utils.data.DataLoader(digits(args.data, True), args.batch_size, shuffle=True)
    test_loader = torch.utils.data.DataLoader(digits(args.data, False), args.test_batch_size)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=args.gamma)
    run = pace.attach(model, optimizer)  # paceline
    run.keep(scheduler=scheduler)  # paceline
    train_loader = run.shard(train_loader)  # paceline

    for epoch in run.epochs(args.epochs):  # paceline
        train(args, model, train_loader, optimizer, epoch)
        loss, accuracy = test(model, test_loader)
        run.report(loss=loss, accuracy=accuracy)  # paceline
        scheduler.step()


if __name__ == "__main__":
    main()
