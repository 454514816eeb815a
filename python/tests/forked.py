"""Starts scripts in forks of this process, which has imported torch already: that takes seconds in each new process."""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import tempfile
import time
import traceback
from typing import Any, Dict, Optional, Sequence, Tuple


class ForkedScript:
    """A script in a forked process, with the part of ``subprocess.Popen`` that the tests use."""

    def __init__(self, command: Sequence[str], environment: Dict[str, str], keep: int) -> None:
        self._output = tempfile.TemporaryFile("w+")
        self._errors = tempfile.TemporaryFile("w+")
        self.returncode: Optional[int] = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(command, environment, keep)

    def _become(self, command: Sequence[str], environment: Dict[str, str], keep: int) -> None:
        code = 1
        try:
            os.dup2(self._output.fileno(), 1)
            os.dup2(self._errors.fileno(), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            # Other scripts' sockets would hide their ends.
            for name in os.listdir("/proc/self/fd"):
                if int(name) > 2 and int(name) != keep:
                    try:
                        os.close(int(name))
                    except OSError:
                        pass
            os.environ.clear()
            os.environ.update(environment)
            for name in [name for name in sys.modules if name.split(".")[0] in ("paceline", "unittest")]:
                del sys.modules[name]
            atexit._clear()
            sys.argv = list(command)
            code = _run(command[0])
        finally:
            os._exit(code)

    def poll(self) -> Optional[int]:
        if self.returncode is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, 9)

    def communicate(self, timeout: float = 120) -> Tuple[str, str]:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(0.005)
        texts = []
        for file in (self._output, self._errors):
            file.seek(0)
            texts.append(file.read())
            file.close()
        return texts[0], texts[1]


def _run(path: str) -> int:
    """Runs a script as ``python path`` would, and gives its exit code."""
    code: Any = 0
    sys.path.insert(0, os.path.dirname(path))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as error:
        code = error.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    try:
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code)
