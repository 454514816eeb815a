"""Runs a command in a network namespace of its own and prints, as JSON, what the kernel says of it from outside:
CPU time and memory of all its processes (wait4), and what went over the loopback interface.

usage: unshare --net python3 independent.py COMMAND...
"""

import json
import os
import subprocess
import sys


def loopback():
    for line in open("/proc/net/dev"):
        name, _, columns = line.partition(":")
        if name.strip() == "lo":
            columns = columns.split()
            return {"received_bytes": int(columns[0]), "sent_bytes": int(columns[8])}


subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
before = loopback()
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)
output = child.stdout.read()
_, status, usage = os.wait4(child.pid, 0)
after = loopback()
print(
    json.dumps(
        {
            "code": os.waitstatus_to_exitcode(status),
            "output": output,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "user_s": usage.ru_utime,
            "system_s": usage.ru_stime,
            "peak_bytes": usage.ru_maxrss * 1024,
            "network": {name: after[name] - before[name] for name in before},
        }
    )
)
