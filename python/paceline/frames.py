"""The frames of the attach protocol: their kinds, limits and bodies of fixed size (``docs/attach.md``)."""

import struct

PROTOCOL = 1

HELLO, WELCOME, READY, START, TICKET, DONE, SETTLED, TAKEN, STEPS, REPORT = range(1, 11)
PART, SAVED, GO, LEAVE, BYE, FAULT, REFUSED, SAVE, OVER, ARRIVED = range(11, 21)

NAMES = {
    HELLO: "HELLO",
    WELCOME: "WELCOME",
    READY: "READY",
    START: "START",
    TICKET: "TICKET",
    DONE: "DONE",
    SETTLED: "SETTLED",
    TAKEN: "TAKEN",
    STEPS: "STEPS",
    REPORT: "REPORT",
    PART: "PART",
    SAVED: "SAVED",
    GO: "GO",
    LEAVE: "LEAVE",
    BYE: "BYE",
    FAULT: "FAULT",
    REFUSED: "REFUSED",
    SAVE: "SAVE",
    OVER: "OVER",
    ARRIVED: "ARRIVED",
}

# The longest body of a frame, and the pieces that longer bytes travel in.
BODY_LIMIT = 64 << 20
PIECE = 16 << 20

UNUSED = 0xFFFFFFFF  # in times per tensor

HEADER = struct.Struct("<II")
ACCOUNT = struct.Struct("<8QdQ")
SETTLED_BODY = struct.Struct("<QId")
GO_BODY = struct.Struct("<Id")
NUMBER = struct.Struct("<Q")
SAVED_BODY = struct.Struct("<QQ")
ARRIVED_BODY = struct.Struct("<QQ")
FACTOR = struct.Struct("<d")

IS_OVER = 1
IS_SAVE = 2
