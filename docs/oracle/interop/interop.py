#!/usr/bin/env python3
"""Runs the checks of interoperability, prints a line for each, and stops at the first that fails.

    interop.py [--gpupipe PROGRAM] [--only NAME…] [--list]

A check is a row of CHECKS: a name, and a command in this folder. It gets the path of the program gpupipe in $GPUPIPE and an
empty folder in $SCRATCH. It passes if it exits with 0. The last line of its output is its summary; the whole output of
one that fails is printed.
"""
import argparse
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))

# The order is that in which checks run. {python} is the interpreter that runs this script.
CHECKS = [
    ("hf-round-trips", "{python} hf_round_trips.py"),
    ("hf-shapes", "{python} hf_shapes.py"),
    ("hf-damage", "{python} hf_damage.py"),
    ("hf-found", "{python} hf_found.py"),
    ("hub-cache", "{python} hub_cache.py"),
    ("gguf", "{python} llama_gguf.py"),
    ("tokenizer", "{python} train_tokenizer.py"),
    ("table-files", "{python} table_files.py"),
    ("json-files", "{python} json_files.py"),
    ("tokenizer-patterns", "{python} tokenizer_patterns.py"),
    ("tokenizer-model", "{python} tokenizer_model.py"),
    ("tokenizer-folders", "{python} tokenizer_folders.py"),
    ("tokenizer-files", "{python} tokenizer_files.py"),
    ("tokenizer-parts", "{python} tokenizer_parts.py"),
    ("chat-templates", "{python} chat_templates.py"),
    ("openai-client", "{python} openai_client.py"),
    ("lm-eval-tasks", "{python} lm_eval_tasks.py"),
    ("tensorboard", "{python} tensorboard_events.py"),
    ("notebook", "{python} notebook.py"),
]


def run(name, command, program):
    """The exit status, the output and the seconds of a check."""
    with tempfile.TemporaryDirectory(prefix=f"interop-{name}-") as scratch:
        begin = time.monotonic()
        done = subprocess.run(command.format(python=sys.executable), shell=True, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, env={**os.environ, "GPUPIPE": program, "SCRATCH": scratch})
        return done.returncode, done.stdout, time.monotonic() - begin


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--gpupipe", default=os.path.join(HERE, "../../../bin/gpupipe"), help="the program to check")
    a.add_argument("--only", nargs="+", choices=[name for name, _ in CHECKS], help="names of checks")
    a.add_argument("--list", action="store_true", help="print the names of the checks")
    a = a.parse_args()
    for name, command in CHECKS:
        if a.list:
            print(name)
        elif not a.only or name in a.only:
            status, output, seconds = run(name, command, os.path.abspath(a.gpupipe))
            if status != 0:
                print(output)
                sys.exit(f"FAIL {name}: exit status {status} after {seconds:.0f} s")
            summary = (output.strip() or "no output").splitlines()[-1]
            print(f"ok   {name:20} {seconds:5.0f} s   {summary}", flush=True)


if __name__ == "__main__":
    main()
