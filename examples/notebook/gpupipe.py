"""Drives the gpupipe program from Python by its JSON output. Needs nothing but Python 3.9 and the program."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

PROGRAM = shutil.which("gpupipe") or str(Path(__file__).resolve().parents[2] / "bin/gpupipe")


class Failed(Exception):
    """A command ended with an exit code other than 0. The text is what it wrote to standard error."""


def arguments(command, *args, **settings):
    """The command line. settings override keys of the config: train__steps=100 is --set train.steps=100."""
    line = [PROGRAM, command, *map(str, args), "--json"]
    for key, value in settings.items():
        line += ["--set", f"{key.replace('__', '.')}={value if isinstance(value, str) else json.dumps(value)}"]
    return line


def events(command, *args, **settings):
    """Runs a command that prints one JSON object a line, and yields each object as it comes.

    A loop that is left early, by break or by the notebook's stop button, ends the command: training saves first.
    """
    with tempfile.TemporaryFile("w+") as problems:
        process = subprocess.Popen(arguments(command, *args, **settings), stdout=subprocess.PIPE, stderr=problems, text=True)
        try:
            for line in process.stdout:
                yield json.loads(line)
        except BaseException:
            process.terminate()
            raise
        finally:
            process.communicate()  # it may have more to say, and ends if nobody listens
        if process.returncode:
            problems.seek(0)
            raise Failed(problems.read().strip())


def result(command, *args, **settings):
    """Runs a command and returns the last object that it prints."""
    last = None
    for last in events(command, *args, **settings):
        pass
    return last
