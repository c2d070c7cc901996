"""Trains transformer language models with gpupipe, the program that this package holds.

    import gpupipe

    run = gpupipe.train("run.yaml", on_step=lambda step: print(step["step"], step["loss"]))
    run.plot()
    run.generate("In the beginning")

Each function runs the program and reads the JSON objects that it prints. An error of the program is an exception with its
message. https://github.com/gpupipe/gpupipe has the keys of a config and the commands.
"""
from __future__ import annotations

from ._program import BadInput, Error, Failed, Interrupted, command, events, program
from ._run import Metrics, Picture, Run, train

TYPE_CHECKING = False  # importing typing takes longer than the rest
if TYPE_CHECKING:
    import os
    from typing import Any, Mapping, Optional, Sequence, Union

    Model = Union[str, "os.PathLike[str]", Run]

__all__ = ["BadInput", "Error", "Failed", "Interrupted", "Metrics", "Picture", "Run", "command", "evaluate", "events", "export", "generate",
           "program", "train"]


def _path(model: Model) -> str:
    import os

    return os.fspath(model)


def generate(model: Model, prompt: str, *, tokens: int = 200, temperature: float = 0.8, top_k: int = 0, top_p: float = 1.0, seed: int = 1,
             step: Optional[Union[int, str]] = None, tokenizer: Optional[str] = None, device: Optional[str] = None) -> str:
    """Continues a prompt and returns it with its continuation.

    model is a Run, a run folder, a checkpoint, a GGUF file, a folder in Hugging Face's layout, or hf:org/name. step names a
    checkpoint of a run, or "best".
    """
    return str(command("generate", _path(model), prompt=prompt, tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
                       step=step, tokenizer=tokenizer, device=device)["text"])


def evaluate(model: Model, data: Optional[Union[str, Sequence[str]]] = None, *, task: Optional[Union[str, Sequence[str]]] = None,
             step: Optional[Union[int, str]] = None, tokenizer: Optional[str] = None, batch_size: Optional[int] = None,
             seq_len: Optional[int] = None, device: Optional[str] = None) -> dict[str, Any]:
    """Measures a model's loss on texts, or on the held-out text of its run. With task it answers multiple-choice questions.

    The result has loss, in nats per token, perplexity and tokens; of tasks their accuracies.
    """
    return command("eval", _path(model), data=data, task=task, step=step, tokenizer=tokenizer, batch_size=batch_size, seq_len=seq_len,
                   device=device)


def export(model: Model, out: Union[str, os.PathLike[str]], *, format: str = "hf", dtype: str = "f32",
           step: Optional[Union[int, str]] = None, force: bool = False) -> dict[str, Any]:
    """Writes a model as a folder for Hugging Face's transformers or, with format "gguf", as a file for llama.cpp."""
    return command("export", _path(model), out=_path(out), format=format, dtype=dtype, step=step, force=force)
