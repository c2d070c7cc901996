#!/usr/bin/env python3
"""Runs the cells of examples/notebook/train.ipynb: the losses fall, and the last cell continues the prompt."""
import ast
import json
import os
import sys

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../examples/notebook")


def execute(source, names):
    """The value of a cell: that of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


def main():
    with open(os.path.join(FOLDER, "train.ipynb")) as f:
        cells = ["".join(c["source"]) for c in json.load(f)["cells"] if c["cell_type"] == "code"]
    os.chdir(FOLDER)
    sys.path.insert(0, os.path.join(FOLDER, "../../cmd/python"))
    names = {}
    for cell in cells:
        value = execute(cell.replace("runs/notebook", os.path.join(os.environ["SCRATCH"], "run")), names)
    losses = names["run"].metrics()["loss"]
    assert len(losses) == 60 and losses[-1] < losses[0] - 2, losses
    assert "validation loss" in names["run"].plot().svg and len(names["run"].metrics().to_pandas()) == 60
    assert value.startswith("In the beginning") and len(value) > 40, value
    print(f"{len(cells)} cells; loss {losses[0]:.2f} to {losses[-1]:.2f}")


main()
