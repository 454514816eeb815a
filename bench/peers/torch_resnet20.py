"""PyTorch training steps of ResNet-20 on one process: the peer of `paceline bench compute --model resnet20`.

Run it through shared/peers/beside.sh, like our own side.  The network is the one in
crates/paceline-nn/src/models/resnet.rs: CIFAR ResNet-20, 1x1 convolution + batch norm on the two
down-sampling shortcuts (272,474 parameters).  Prints one JSON line, last.
"""
import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.downsample = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        skip = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + skip, inplace=True)


class ResNet(nn.Module):
    def __init__(self, blocks=3, cin=3, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        width = 16
        for stage, cout in enumerate((16, 32, 64), 1):
            stack = []
            for i in range(blocks):
                stack.append(Block(width, cout, 2 if stage > 1 and i == 0 else 1))
                width = cout
            setattr(self, f"layer{stage}", nn.Sequential(*stack))
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--steps", type=int, default=10)
    ap.add_argument("--warmup", type=int, default=2)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--channels-last", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    net = ResNet()
    x = torch.randn(2048, 3, 32, 32)
    if a.channels_last:
        net = net.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (2048,))
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step():
        i = torch.randint(0, 2048, (a.batch,))
        opt.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x[i]), y[i])
        loss.backward()
        opt.step()
        return loss

    for _ in range(a.warmup):
        step()
    t = time.perf_counter()
    for _ in range(a.steps):
        loss = step()
    loss.item()
    dt = time.perf_counter() - t
    print(json.dumps(dict(peer="torch-local", version=torch.__version__, model="resnet20", batch=a.batch,
                          threads=a.threads, channels_last=a.channels_last,
                          params=sum(p.numel() for p in net.parameters()),
                          steps=a.steps, samples_per_s=a.steps * a.batch / dt)))


if __name__ == "__main__":
    main()
