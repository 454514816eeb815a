"""A script in plain Python whose gradients are known: `tests/script.rs` computes the same numbers in Rust."""

import sys
from array import array

from paceline.attach import attach

SHAPES = [[3, 4], [4], [50, 20], [7], [1]]
SIZES = [12, 4, 1000, 7, 1]
TENSORS = range(len(SIZES))

steps = int(sys.argv[1])
run = attach(
    [(f"t{number}", shape) for number, shape in enumerate(SHAPES)],
    framework="plain Python",
    optimizer={"kind": "sgd", "groups": [{"tensors": list(TENSORS), "lr": 0.125}]},
)


def gradient(step, number):
    """The gradient of a tensor in a step of this worker's."""
    base = run.rank * 7 + step * 3 + number * 5
    return [(base + i % 11) / 64 - 0.5 for i in range(SIZES[number])]


def moved(number, by):
    """A tensor after an update."""
    return array("f", [p - 0.125 * g for p, g in zip(own[number], by)])


for number in TENSORS:
    run.parameter(number)[:] = array("f", [(number + i % 13) / 16 for i in range(SIZES[number])])
run.start()
own = [array("f", run.parameter(number)) for number in TENSORS]
for _ in range(steps):
    step = run.step
    if run.gives == "gradients":
        for number in reversed(TENSORS):
            run.gradient(number)[:] = array("f", [g * run.scale for g in gradient(step, number)])
            run.ticket([number])
        if run.used is not None:
            run.gradients[run.used : run.used + len(SIZES)] = array("f", [1.0] * len(SIZES))
    else:
        for number in TENSORS:
            local = moved(number, gradient(step, number))
            if run.gives == "updates":
                delta = [(p - q) * run.scale for p, q in zip(local, run.parameter(number))]
                run.gradient(number)[:] = array("f", delta)
            elif run.gives == "parameters":
                run.parameter(number)[:] = local
            else:
                own[number] = local
    served = run.gives == "gradients" and run.takes == "parameters"
    settled = run.done(samples=2, loss=0.5, factor=1.0 if served else None)
    if settled.over:
        break
    for number in TENSORS:
        if run.takes == "parameters":
            own[number] = array("f", run.parameter(number))
        elif run.takes != "nothing":
            mean = run.gradient(number) if run.takes == "gradients" else run.parameter(number)
            own[number] = moved(number, mean)
    run.taken()
for number in TENSORS:
    run.parameter(number)[:] = own[number]
run.report(accuracy=0.75, rank=float(run.rank))
