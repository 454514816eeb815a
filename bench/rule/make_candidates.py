"""Writes the candidates that differ in numbers alone: steps of a lap, how fast the drift is learnt, how much of it is forgotten."""

import pathlib

HERE = pathlib.Path(__file__).resolve().parent

TEXT = """\
# Travelling averages with a lap of about {lap} steps; drift is learnt at {learn} and forgotten at {forget} per lap.
name = "travelling averages, lap {lap}, drift {learn}, forget {forget}"
about = "each chunk's average travels the ring; a visited worker adds its progress, takes the average, and learns its drift"
registers = ["token", "base", "drift"]
chunks = "workers * rests"

[let]
rests = "max(1, floor({lap} / workers))"
hops = "max(1, floor(workers / {lap}))"
hop = "floor(step / rests) * hops + k"
turn = "step mod rests"
next = "(rank + 1) mod workers"
leaves = "(rank - hop + 1) mod workers * rests + turn"
visits = "(rank - hop) mod workers * rests + turn"
many = "workers > 1"
learn = "{learn} * hops / (workers * rests)"

[[round]]
name = "start"
when = "step == 0 and many"
do = [
    {{ copy = "base", of = "x" }},
    {{ copy = "token", of = "x" }},
    {{ set = "drift", of = "x", add = 0 }},
]

[[round]]
name = "hops"
repeat = "hops"
do = [
    {{ send = "token", chunk = "leaves", to = "next", keep = 0, when = "hop > 0 and many" }},
    {{ update = "x", when = "k == 0" }},
    {{ set = "x", of = "drift", keep = 1, add = 1, when = "k == 0 and many" }},
    {{ set = "token", of = "x", chunk = "visits", keep = 1, add = "1 / workers", when = "many" }},
    {{ set = "token", of = "base", chunk = "visits", keep = 1, add = "-1 / workers", when = "many" }},
    {{ set = "drift", of = "token", chunk = "visits", keep = "1 - {forget}", add = "learn", when = "many" }},
    {{ set = "drift", of = "x", chunk = "visits", keep = 1, add = "-learn", when = "many" }},
    {{ copy = "x", of = "token", chunk = "visits", when = "many" }},
    {{ copy = "base", of = "token", chunk = "visits", when = "many" }},
]
"""

for lap in [8, 16, 32]:
    for learn, forget in [(0.5, 0), (0.5, 0.1), (0.25, 0.1), (1, 0.2)]:
        name = f"travelling-lap-{lap}-learn-{round(100 * learn)}-forget-{round(100 * forget)}.toml"
        (HERE / "candidates" / name).write_text(TEXT.format(lap=lap, learn=learn, forget=forget))

# The rule without drift: the same, with nothing learnt.
(HERE / "candidates" / "travelling-lap-16-learn-0-forget-0.toml").write_text(TEXT.format(lap=16, learn=0, forget=0))

LOCAL = """\
# Known: local SGD whose workers correct their own drift (SCAFFOLD, Scaffnew), averaged every {h} steps.
name = "local SGD with drift correction, every {h} steps"
about = "weights are averaged by a ring all-reduce every {h} steps; workers learn how their progress differs from the mean and take it out"
registers = ["own", "drift"]
chunks = "workers"

[let]
next = "(rank + 1) mod workers"
due = "(step + 1) mod {h} == 0"

[[round]]
name = "update"
do = [
    {{ update = "x" }},
    {{ set = "drift", of = "x", add = 0, when = "step == 0" }},
    {{ set = "x", of = "drift", keep = 1, add = 1 }},
]

[[round]]
name = "own"
when = "due"
do = [{{ copy = "own", of = "x" }}]

[[round]]
name = "reduce-scatter"
when = "due"
repeat = "workers - 1"
do = [{{ send = "x", chunk = "(rank - k) mod workers", to = "next" }}]

[[round]]
name = "all-gather"
when = "due"
repeat = "workers - 1"
do = [{{ send = "x", chunk = "(rank + 1 - k) mod workers", to = "next", keep = 0 }}]

[[round]]
name = "mean"
when = "due"
do = [
    {{ scale = "x", by = "1 / workers" }},
    {{ set = "drift", of = "x", keep = 1, add = "0.5 / {h}" }},
    {{ set = "drift", of = "own", keep = 1, add = "-0.5 / {h}" }},
]
"""
for h in [8, 16, 32]:
    (HERE / "rivals" / f"local-drift-{h}.toml").write_text(LOCAL.format(h=h))
