#!/usr/bin/env python3
"""lm-evaluation-harness's local-completions scores local tasks against gpupipe serve and equals gpupipe eval --task.

A small model is trained here. Its questions are in the formats of ARC and PIQA, some with characters of several bytes and with
a space at the end of the context. acc and acc_norm are equal to 1e-4.
"""
import json
import os
import random
import signal
import subprocess
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_CACHE", os.path.join(os.environ.get("SCRATCH", "/tmp"), "datasets"))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import lm_eval  # noqa: E402

GPUPIPE = os.environ.get("GPUPIPE", "gpupipe")
SCRATCH = os.environ.get("SCRATCH", "/tmp")
DEVICE = os.environ.get("DEVICE", "cpu:0")
QUESTIONS = 60
WORDS = ["the cat sat on the mat", "a dog ran to the hill", "rain fell on the old town", "é was ist das für ein Hund", "they spoke of the sea",
         "nobody knew the way", "birds sang at dawn", "the king gave an order"]


def gpupipe(*arguments):
    done = subprocess.run([GPUPIPE, *map(str, arguments)], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"gpupipe {' '.join(map(str, arguments))}: exit status {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def write_tasks(rng):
    """Files of questions, and lm-evaluation-harness's descriptions of them."""
    arc, piqa = [], []
    for i in range(QUESTIONS):
        choices = rng.sample(WORDS, 4)
        begin = rng.choice(WORDS)
        arc.append({"id": str(i), "question": begin + " ", "choices": {"text": choices, "label": list("ABCD")}, "answerKey": rng.choice("ABCD")})
        piqa.append({"goal": begin, "sol1": choices[0], "sol2": choices[1], "label": rng.randrange(2)})
    tasks = {"arc": (arc, "Question: {{question}}\nAnswer:", "{{choices.text}}", "{{choices.label.index(answerKey)}}"),
             "piqa": (piqa, "Question: {{goal}}\nAnswer:", "{{[sol1, sol2]}}", "label")}
    described = []
    for name, (rows, text, choice, target) in tasks.items():
        path = os.path.join(SCRATCH, name + ".jsonl")
        with open(path, "w") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)
        described.append({"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": path}}, "test_split": "test",
                          "output_type": "multiple_choice", "doc_to_text": text, "doc_to_choice": choice, "doc_to_target": target,
                          "metric_list": [{"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm")]})
    return described


def train(rng):
    text, run, folder = (os.path.join(SCRATCH, n) for n in ("text.txt", "run", "model"))
    with open(text, "w") as f:
        f.writelines(" ".join(rng.choices(WORDS, k=3)) + ".\n" for _ in range(600))
    gpupipe("train", "--no-tune", "--device", DEVICE, "--set", f"run.dir={run}", "--set", f"data.train=[{text}]", "--set", "data.tokenizer=bytes",
            "--set", "model={vocab_size: 256, d_model: 48, n_layers: 2, n_heads: 4, n_kv_heads: 2, d_ff: 96, seq_len: 128}",
            "--set", "train={steps: 40, batch_size: 8, eval_every: 0, save_every: 0}", "--set", "lr.warmup=4")
    gpupipe("export", run, "--out", folder)
    return folder


def served(folder):
    """A process that serves the model, and its URL."""
    server = subprocess.Popen([GPUPIPE, "serve", folder, "--listen", "127.0.0.1:0", "--json", "--device", DEVICE], stdout=subprocess.PIPE, text=True)
    line = server.stdout.readline()
    if not line:
        sys.exit(f"gpupipe serve: exit status {server.wait()}")
    return server, json.loads(line)


def main():
    rng = random.Random(1)
    described, folder = write_tasks(rng), train(rng)
    server, at = served(folder)
    try:
        arguments = {"model": at["model"], "base_url": at["url"] + "/v1/completions", "num_concurrent": 4, "max_retries": 1, "max_length": at["context"],
                     "tokenizer_backend": "huggingface", "tokenizer": folder, "batch_size": 3}
        theirs = lm_eval.simple_evaluate(model="local-completions", model_args=arguments, tasks=described, log_samples=True, bootstrap_iters=0)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
    ours = json.loads(gpupipe("eval", folder, "--device", DEVICE, "--json", *[x for t in described for x in ("--task", os.path.join(SCRATCH, t["task"] + ".jsonl"))]))
    worst = 0.0
    for result in ours["tasks"]:
        want = theirs["results"][result["task"]]
        for metric in ("acc", "acc_norm"):
            worst = max(worst, abs(result[metric] - want[metric + ",none"]))
            if worst > 1e-4:
                sys.exit(f"{result['task']}: {metric}: gpupipe {result[metric]}, lm-evaluation-harness {want[metric + ',none']}")
    print(f"{len(ours['tasks'])} tasks of {QUESTIONS} questions: accuracies differ by at most {worst:.1e}: " +
          ", ".join(f"{r['task']} {r['acc']:.3f} {r['acc_norm']:.3f}" for r in ours["tasks"]))


if __name__ == "__main__":
    main()
