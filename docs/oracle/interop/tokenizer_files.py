#!/usr/bin/env python3
"""Compares the ids that gpupipe makes with the files of tokenizers other than tokenizer.json with those of the programs that
define them: *.tiktoken with tiktoken's, vocab.json with merges.txt with AutoTokenizer's of transformers, tekken.json with
mistral-common's. Ids are equal, or the file is refused by name.

$GPUPIPE is the program, $SCRATCH a folder for files, $TIKTOKEN_RANKS a folder with the files of OpenAI's encodings, and
$MISTRAL_PYTHON a Python with mistral-common. The last line of the output is a summary.

    tokenizer_files.py [--seed N] [--folders N]
"""
import argparse
import base64
import json
import os
import random
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import tiktoken  # noqa: E402
import tiktoken_ext.openai_public as openai_public  # noqa: E402
from transformers import AutoTokenizer, logging  # noqa: E402

from token_stream import SCRATCH, stream  # noqa: E402
from tokenizer_folders import byte_bpe, byte_level, split, GPT4  # noqa: E402
from tokenizer_patterns import SCRIPTS  # noqa: E402

logging.set_verbosity(logging.CRITICAL)
HERE = Path(__file__).parent
RANKS = Path(os.environ["TIKTOKEN_RANKS"])
ENCODINGS = ["r50k_base", "p50k_base", "cl100k_base", "o200k_base"]
SPECIAL = ["<|endoftext|>", "<|fim_prefix|>", "<|endofprompt|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "[BOS]", "[EOS]", "<s>", "</s>",
           "<unk>", "<mask>", "[INST]", "[/INST]"]
# Split patterns as the models' own code has them.
QWEN = GPT4 % ""
LLAMA3 = GPT4 % "{1,3}"
WORDS = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]%s[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]%s(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([r"[\p{Han}]+", WORDS % ("*", "+"), WORDS % ("+", "*"), r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


class Texts:
    """Makes texts in many scripts."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def text(self):
        r = self.r
        parts = [r.choice(SCRIPTS), r.choice(SPECIAL), "\r\n", "\r\n\r\n", "  two   spaces ", " ", "\n", "\t", "It's 'LL don't 'ſ", "12 1234567", "x=1;\r\n\ty"]
        return "".join(r.choice(parts) if r.random() < 0.8 else r.choice(SCRIPTS)[:r.randint(1, 9)] for _ in range(r.randint(1, 12)))

    def some(self, n):
        return ["", *SCRIPTS, "a\r\nb\r\n\r\n  c\r\n", "", *(self.text() for _ in range(n))]


def expect(what, got, message, want, end):
    """Compares a stream of tokens with the ids of each text, behind which the end of a document stands."""
    if got is None:
        sys.exit(f"{what}: refused: {message}")
    at = 0
    for text, ids in want:
        ids = ids + end if text else []
        if got[at:at + len(ids)] != ids:
            sys.exit(f"{what}: {text!r}: found {got[at:at + len(ids)]}, expected {ids}")
        at += len(ids)
    if at != len(got):
        sys.exit(f"{what}: {len(got) - at} tokens too many")
    return len(want)


def write_ranks(path, tokens):
    path.write_text("".join(f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(tokens)))
    return path


def tiktoken_files(texts):
    """OpenAI's encodings, and the files of Qwen, Kimi and Llama 3, whose ranks here are the first of o200k_base."""
    equal = 0
    openai_public.load_tiktoken_bpe = lambda url, expected_hash: load(RANKS / url.rsplit("/", 1)[1], expected_hash)
    for name in ENCODINGS:
        e = tiktoken.Encoding(**getattr(openai_public, name)())
        shutil.copy(RANKS / f"{name}.tiktoken", SCRATCH / "ranks.tiktoken")  # the name does not tell
        some = texts.some(150)
        got, message = stream(SCRATCH / "ranks.tiktoken", some)
        equal += expect(name, got, message, [(s, e.encode(s, allowed_special="all")) for s in some], [e.eot_token])
    ranks = openai_public.load_tiktoken_bpe("/o200k_base.tiktoken", None)
    tokens = sorted(ranks, key=ranks.get)
    qwen = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
    llama = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>",
             "<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"]
    for file, count, pattern, special, end, change in (
            ("qwen.tiktoken", 151643, QWEN, qwen, "<|endoftext|>", lambda s: unicodedata.normalize("NFC", s)),
            ("tokenizer.model", 128000, LLAMA3, llama, "<|end_of_text|>", str),
            ("tiktoken.model", 163584, KIMI, ["[BOS]", "[EOS]"], "[EOS]", str)):
        folder = SCRATCH / file.replace(".", "-")
        folder.mkdir()
        write_ranks(folder / file, tokens[:count])
        named = {s: count + i for i, s in enumerate(special)}
        if file == "tiktoken.model":
            decoder = {str(i): {"content": s, "special": True} for s, i in named.items()}
            (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder, "bos_token": "[BOS]", "eos_token": "[EOS]"}))
        e = tiktoken.Encoding(file, pat_str=pattern, mergeable_ranks={t: i for i, t in enumerate(tokens[:count])}, special_tokens=named)
        some = texts.some(150)
        for path in (folder, folder / file):
            got, message = stream(path, some)
            equal += expect(f"{file} of {count} tokens", got, message, [(s, e.encode(change(s), allowed_special="all")) for s in some], [named[end]])
        got, message = stream(write_ranks(folder / file, tokens[:count - 1]), [])
        if got is not None or "of an encoding that is not known" not in message:
            sys.exit(f"{file} of {count - 1} tokens: expected a refusal by name, found: {message}")
    return equal


def load(path, expected_hash):
    from tiktoken.load import check_hash
    data = path.read_bytes()
    if expected_hash and not check_hash(data, expected_hash):
        sys.exit(f"{path}: not the published file")
    return {base64.b64decode(t): int(rank) for t, rank in (line.split() for line in data.splitlines() if line)}


def vocab_and_merges(texts, folders):
    """Folders of vocab.json and merges.txt."""
    r = texts.r
    bases = [byte_bpe(byte_level(), ["<|endoftext|>"]), byte_bpe(split(QWEN), ["<|endoftext|>", "<|im_start|>"]),
             byte_bpe(byte_level(), ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])]
    equal, refused, theirs, classes = 0, 0, 0, {}
    for n in range(folders):
        j, path = r.choice(bases), SCRATCH / "merges"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        name = r.choice(["GPT2Tokenizer", "GPT2TokenizerFast", "RobertaTokenizer", "BartTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast", "CLIPTokenizer", "GPTNeoXTokenizer", None])
        config = {} if name is None else {"tokenizer_class": name}
        config["eos_token"] = j["added_tokens"][0]["content"]
        for key in ("add_prefix_space", "add_bos_token"):
            if r.random() < 0.3:
                config[key] = r.random() < 0.5
        size = len(j["model"]["vocab"])
        if r.random() < 0.3:
            (path / "added_tokens.json").write_text(json.dumps({"<|im_end|>": size, "[INST]": size + 1}))
        if r.random() < 0.3:
            config["additional_special_tokens"] = ["<|fim_prefix|>"]
        (path / "vocab.json").write_text(json.dumps(j["model"]["vocab"]))
        (path / "merges.txt").write_text("#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in j["model"]["merges"]))
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        kind = r.choice(["gpt2", "qwen2", "qwen3", "roberta", "bart", "opt", "gpt_neox", "llama", None])
        if kind:
            (path / "config.json").write_text(json.dumps({"model_type": kind}))
        some, around = texts.some(30), r.random() < 0.3
        got, message = stream(path, some, *(["--bos", "auto"] if around else []))
        try:
            t = AutoTokenizer.from_pretrained(str(path))
            want = [(s, t.encode(s, add_special_tokens=around)) for s in some]
        except Exception:
            t = want = None
        if got is None:
            refused += 1
            if not any(word in message for word in ("whose rules for vocab.json", "puts the tokens", "token")):
                sys.exit(f"folder {n}: {config} {kind}: a refusal without a reason: {message}")
        elif want is None:
            theirs += 1
        else:
            end = [t.eos_token_id]
            if around and all(ids[-1:] == end for s, ids in want if s):
                want = [(s, ids[:-1]) for s, ids in want]  # written once
            expect(f"folder {n}: {config} {kind} {type(t).__name__}", got, message, want, end)
            equal += 1
            classes[type(t).__name__] = classes.get(type(t).__name__, 0) + 1
    if not {"GPT2Tokenizer", "RobertaTokenizer", "Qwen2Tokenizer"} <= set(classes):
        sys.exit(f"no folder of some classes is read: {classes}")
    return f"{folders} folders of vocab.json: {equal} equal, {refused} refused by name, {theirs} that transformers refuses"


def tekken_files(texts):
    """Mistral's published tokenizers, and parts of one."""
    python = os.environ["MISTRAL_PYTHON"]
    where = "import mistral_common, pathlib; print(pathlib.Path(mistral_common.__file__).parent / 'data')"
    data = Path(subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip())
    files, equal = sorted(data.glob("tekken_*.json")), 0
    small = json.loads(files[0].read_text())
    small["vocab"] = small["vocab"][:20000]
    small["config"].update(num_vocab_tokens=20000, default_vocab_size=12000)
    (SCRATCH / "tekken.json").write_text(json.dumps(small))
    for path in [*files, SCRATCH / "tekken.json"]:
        some = texts.some(150)
        done = subprocess.run([python, str(HERE / "mistral_ids.py"), str(path)], input=json.dumps(some), capture_output=True, text=True, check=True)
        for how, ids in zip(("text", "token"), json.loads(done.stdout)):
            got, message = stream(path, some, "--special-text", how)
            equal += expect(f"{path.name}, special tokens are {how}", got, message, list(zip(some, ids)), [2])
    return equal, len(files)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--folders", type=int, default=60)
    a = a.parse_args()
    texts = Texts(a.seed)
    ranks = tiktoken_files(texts)
    print(folders := vocab_and_merges(texts, a.folders))
    tekken, files = tekken_files(texts)
    print(f"{ranks} texts of 7 files of tiktoken and {tekken} of {files} published tekken.json and a part have equal ids; {folders}")


if __name__ == "__main__":
    main()
