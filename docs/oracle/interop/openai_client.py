#!/usr/bin/env python3
"""OpenAI's client for Python talks to gpupipe serve: texts and chats, whole and streamed, scores, tools, stop strings and errors.

A small model that repeats counting is trained here. Its folder gets a chat template, and is served from it and from a GGUF file.
"""
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import openai

GPUPIPE = os.environ.get("GPUPIPE", "gpupipe")
SCRATCH = os.environ.get("SCRATCH", "/tmp")
DEVICE = os.environ.get("DEVICE", "cpu:0")
MEBIBYTE = 1 << 20
TEMPLATE = ("{% for m in messages %}{{ m.content }}\n{% endfor %}{% if tools %}{{ tools[0].function.name }} {% endif %}"
            "{% if shout is defined %}{{ shout | upper }}{% endif %}")
ASKED = [{"role": "user", "content": "one two"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def gpupipe(*arguments):
    done = subprocess.run([GPUPIPE, *map(str, arguments)], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"gpupipe {' '.join(map(str, arguments))}: exit status {done.returncode}: {done.stderr.strip()[-2000:]}")


def models():
    """A folder and a GGUF file of one model."""
    text, run, folder, gguf = (os.path.join(SCRATCH, n) for n in ("text.txt", "run", "model", "model.gguf"))
    with open(text, "w") as f:
        f.write("one two three four five é日本 six\n" * 400)
    gpupipe("train", "--no-tune", "--device", DEVICE, "--set", f"run.dir={run}", "--set", f"data.train=[{text}]", "--set", "data.tokenizer=bytes",
            "--set", "model={vocab_size: 256, d_model: 32, n_layers: 1, n_heads: 2, d_ff: 64, seq_len: 128}",
            "--set", "train={steps: 40, batch_size: 8, eval_every: 0, save_every: 0}", "--set", "lr.warmup=4")
    gpupipe("export", run, "--out", folder)
    with open(os.path.join(folder, "chat_template.jinja"), "w") as f:
        f.write(TEMPLATE)
    gpupipe("export", folder, "--format", "gguf", "--out", gguf)
    return folder, gguf


@contextlib.contextmanager
def served(model):
    """A process that serves a model under the name m, and a client for it."""
    server = subprocess.Popen([GPUPIPE, "serve", model, "--listen", "127.0.0.1:0", "--json", "--name", "m", "--device", DEVICE],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = server.stdout.readline()
    if not line:
        sys.exit(f"gpupipe serve {model}: exit status {server.wait()}: {server.stderr.read()}")
    try:
        yield server, openai.OpenAI(base_url=json.loads(line)["url"].rstrip("/").removesuffix("/v1") + "/v1", api_key="none", max_retries=0)
    finally:
        server.kill()
        server.wait()


def equal(found, expected, what):
    if found != expected:
        sys.exit(f"{what}: found {found!r}, expected {expected!r}")


def completions(client):
    def ask(**fields):
        return client.completions.create(model="m", prompt="one two", seed=1, **fields)
    whole = ask(max_tokens=40, logprobs=2)
    text, scores = whole.choices[0].text, whole.choices[0].logprobs
    equal(whole.choices[0].finish_reason, "length", "the reason")
    equal(whole.usage.completion_tokens, 40, "the count of tokens")
    equal([len(scores.tokens), len(scores.token_logprobs), len(scores.text_offset)], [40] * 3, "scores")
    equal("".join(part.choices[0].text for part in ask(max_tokens=40, stream=True)), text, "the stream")
    for stop in ([text[9:12], text[3:5]], [text[3:5], text[9:12]]):
        part = ask(max_tokens=40, stop=stop)
        equal(part.choices[0].text, text[:text.find(min(stop, key=lambda s: text.find(s) + len(s)))], f"stop {stop}")
        equal(part.choices[0].finish_reason, "stop", "the reason at a stop string")
    echo = client.completions.create(model="m", prompt="é日x", echo=True, logprobs=0, max_tokens=0).choices[0]
    equal(echo.logprobs.text_offset, [0, 0, 1, 1, 1, 2], "places of tokens")
    equal(len(ask(max_tokens=2, n=3).choices), 3, "choices")


def chats(client):
    def fields(**more):
        return dict(model="m", messages=ASKED, seed=1, max_tokens=20, **more)
    answer = client.chat.completions.create(**fields(logprobs=True, top_logprobs=1))
    message = answer.choices[0].message
    equal([message.role, message.refusal, len(answer.choices[0].logprobs.content)], ["assistant", None, answer.usage.completion_tokens], "the answer")
    with client.chat.completions.stream(**fields(stream_options={"include_usage": True})) as stream:
        for _ in stream:
            pass
        final = stream.current_completion_snapshot
    equal(final.choices[0].message.role, "assistant", "the role of a stream")
    equal(final.choices[0].message.content, message.content, "the text of a stream")
    equal(final.usage, answer.usage, "the usage of a stream")
    client.chat.completions.create(model="m", messages=[*ASKED, message, *ASKED], max_tokens=1)
    for more, longer in ((dict(tools=[TOOL]), len("weather ")), (dict(extra_body={"chat_template_kwargs": {"shout": "hey"}}), 3)):
        found = client.chat.completions.create(**fields(**more)).usage.prompt_tokens
        equal(found, answer.usage.prompt_tokens + longer, f"the tokens of the prompt with {more}")


def errors(client):
    def refused(kind, param, **fields):
        try:
            client.chat.completions.create(**{"model": "m", "messages": ASKED, "max_tokens": 1, **fields})
        except kind as e:
            equal(e.param, param, f"the param of {str(fields)[:60]}")
        else:
            sys.exit(f"{str(fields)[:60]}: found an answer, expected {kind.__name__}")
    refused(openai.BadRequestError, "temperature", temperature=-1)
    refused(openai.BadRequestError, "logit_bias", logit_bias={"1": 5})
    refused(openai.BadRequestError, "max_tokens", max_tokens="many")
    refused(openai.NotFoundError, "model", model="other")
    refused(openai.APIStatusError, None, messages=[{"role": "user", "content": "x" * 20 * MEBIBYTE}])
    for body, status in ((b"x" * 20 * MEBIBYTE, 413), (b"x" * 900000, 415), (None, 405)):
        try:
            urllib.request.urlopen(urllib.request.Request(f"{client.base_url}completions", body, {"Content-Type": "text/plain"}))
        except urllib.error.HTTPError as e:
            equal(e.code, status, f"the status of {len(body or b'')} bytes")
        else:
            sys.exit(f"found an answer, expected the status {status}")


def interrupted(server, client):
    """Ctrl-C lets a stream end."""
    stream = client.completions.create(model="m", prompt="one", max_tokens=100, stream=True, seed=2)
    parts = [next(stream).choices[0]]
    threading.Timer(0, server.send_signal, [signal.SIGINT]).start()
    parts += [part.choices[0] for part in stream]
    equal(parts[-1].finish_reason, "length", "the end of a stream after Ctrl-C")
    equal(server.wait(timeout=600), 0, "the exit status after Ctrl-C")


def main():
    folder, gguf = models()
    for model in (folder, gguf):
        with served(model) as (server, client):
            completions(client)
            chats(client)
            errors(client)
            interrupted(server, client)
    print("openai", openai.__version__, "from a folder and from GGUF: texts, chats, streams, scores, tools, stop strings, errors, Ctrl-C")


if __name__ == "__main__":
    main()
