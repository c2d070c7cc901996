"""Runs the program and reads what it prints."""
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any, Iterator, Optional

# How the program ends.
_BAD_INPUT, _INTERRUPTED = 2, 130


class Error(Exception):
    """The program failed. The text is the program's message; code is its exit code."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


class BadInput(Error):
    """A config, a file, an argument or a device is not usable. The message says what was found and what was expected."""


class Failed(Error):
    """A run diverged, a disk is full, or a device failed."""


class Interrupted(Error):
    """The command was stopped before it had a result."""


def program() -> str:
    """The path of the program: that in the environment variable GPUPIPE, that of this package, or the one on the search path."""
    import os

    name = "gpupipe.exe" if os.name == "nt" else "gpupipe"
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", name)
    given = os.environ.get("GPUPIPE")
    if given:
        return given
    if os.path.exists(here):
        return here
    import shutil

    found = shutil.which("gpupipe")
    if found is None:
        raise FileNotFoundError("this package has no program gpupipe, and there is none on the search path: install a wheel, or set GPUPIPE to its path")
    return found


def main() -> int:
    """The command gpupipe of the environment that this package is installed in."""
    import os
    import subprocess
    import sys

    line = [program(), *sys.argv[1:]]
    if os.name != "nt":
        os.execv(line[0], line)
    return subprocess.call(line)


def _arguments(name: str, args: tuple[Any, ...], flags: dict[str, Any]) -> list[str]:
    """The command line of a command. A flag that is None or False is omitted, a list is a flag for each element."""
    line = [program(), *name.split(), "--json"]
    for flag, value in flags.items():
        if value is None or value is False:
            continue
        flag = "--" + flag.rstrip("_").replace("_", "-")
        for v in value if isinstance(value, (list, tuple)) else [value]:
            line.append(flag if v is True else f"{flag}={v}")
    return line + ["--", *map(str, args)]


class Process:
    """A command that prints one JSON object a line. Iterating gives the objects; its end raises the program's error."""

    def __init__(self, name: str, args: tuple[Any, ...], flags: dict[str, Any]):
        import subprocess
        import sys
        import tempfile

        self._problems = tempfile.TemporaryFile("w+b")
        group = 0
        if sys.platform == "win32":
            group = subprocess.CREATE_NEW_PROCESS_GROUP  # for signals
        self._process: subprocess.Popen[bytes] = subprocess.Popen(_arguments(name, args, flags), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                                                  stderr=self._problems, creationflags=group)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import json

        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                yield json.loads(line)
        except BaseException:
            self.stop()
            raise
        finally:
            self._process.communicate()  # it may have more to say, and saves before it ends
            self._problems.seek(0)
            message = self._problems.read().decode(errors="replace").strip()
            self._problems.close()
        code = self._process.returncode
        if code != 0:
            message = message[len("gpupipe: "):] if message.startswith("gpupipe: ") else message
            kind = {_BAD_INPUT: BadInput, _INTERRUPTED: Interrupted}.get(code, Failed)
            raise kind(message or f"the program ended with exit code {code}", code)

    def stop(self) -> None:
        """Asks the program to end: training saves a checkpoint first."""
        import signal
        import sys

        if self._process.poll() is not None:
            return
        if sys.platform == "win32":
            self._process.send_signal(signal.CTRL_BREAK_EVENT)
        else:
            self._process.send_signal(signal.SIGTERM)


def events(name: str, *args: Any, **flags: Any) -> Iterator[dict[str, Any]]:
    """Runs a command of the program and yields each JSON object that it prints. A loop that is left early stops the command.

    A flag is a keyword argument: batch_size=4 is --batch-size=4; a list repeats it.
    """
    return iter(Process(name, args, flags))


def command(name: str, *args: Any, **flags: Any) -> dict[str, Any]:
    """Runs a command of the program and returns the last JSON object that it prints."""
    last: Optional[dict[str, Any]] = None
    for last in events(name, *args, **flags):
        pass
    if last is None:
        raise Failed(f"gpupipe {name} printed nothing", 0)
    return last
