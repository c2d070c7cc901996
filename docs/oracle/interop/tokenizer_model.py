#!/usr/bin/env python3
"""Compares how gpupipe and transformers read folders with a tokenizer.model: made models and side files × texts in many
scripts. Equal or refused, none different.

$GPUPIPE is the program, $SCRATCH a folder for files. The last line of the output is a summary.

    tokenizer_model.py [--seed N] [--folders N] [--golden FOLDER]

--golden writes models, side files and the ids of transformers for the tests of pipeline/data/tokenizer instead.
"""
import argparse
import json
import os
import random
import shutil
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import sentencepiece  # noqa: E402
from transformers import AutoTokenizer, logging  # noqa: E402

from token_stream import SCRATCH, stream  # noqa: E402
from tokenizer_patterns import SCRIPTS  # noqa: E402

logging.set_verbosity(logging.CRITICAL)
CONTROLS, USERS = ["<s>", "</s>", "<unk>"], ["[INST]", "<mask>", "  ", "\n\n", "▁▁▁", "<0x41>"]
NEW = ["<|im_start|>", "<|im_end|>", "<pad>", "<bos>", "<eos>", "<|new token|>", "wide ", " left", "नम", "é!"]
FAMILIES = {"LlamaTokenizer": "llama", "LlamaTokenizerFast": "llama", "GemmaTokenizer": "gemma", "GemmaTokenizerFast": "gemma",
            "PreTrainedTokenizerFast": "llama", None: "llama", "T5Tokenizer": "t5", "XLMRobertaTokenizer": "xlm-roberta", "OwnTokenizer": "llama"}
MADE = dict(bpe=dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False),
            bpe_nfkc=dict(model_type="bpe", byte_fallback=True),
            unigram=dict(model_type="unigram", byte_fallback=True),
            plain=dict(model_type="bpe", byte_fallback=False),
            users=dict(model_type="bpe", byte_fallback=True, user_defined_symbols=USERS[:4], control_symbols=["<|im_end|>", "<eot>"],
                       normalization_rule_name="identity", add_dummy_prefix=False, split_digits=True),
            gemma=dict(model_type="bpe", byte_fallback=True, pad_id=0, eos_id=1, bos_id=2, unk_id=3, eos_piece="<eos>", bos_piece="<bos>",
                       user_defined_symbols=["<mask>", "\n", "\n\n", "▁▁", "▁▁▁"], normalization_rule_name="identity", remove_extra_whitespaces=False),
            no_ends=dict(model_type="unigram", byte_fallback=False, bos_id=-1, eos_id=-1, user_defined_symbols=["[INST]"],
                         normalization_rule_name="identity"))


def make(name, path, size=700):
    """Trains a model of MADE."""
    corpus = [s for s in SCRIPTS if s.strip()] * 5 + ["the cat's 12 hats  on the mat, that's that.", "<s> a </s> ab abc abcd <0x0A>"] * 20
    with open(path, "wb") as f:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus), model_writer=f, vocab_size=size, hard_vocab_limit=False,
                                                 character_coverage=0.98, minloglevel=3, **MADE[name])


class Folders:
    """Makes folders and texts."""

    def __init__(self, seed, models):
        self.r, self.models = random.Random(seed), models

    def token(self):
        return self.r.choice(CONTROLS + USERS + NEW + ["a", "▁the", "th"])

    def flags(self):
        return {k: self.r.random() < 0.3 for k in ("lstrip", "rstrip", "normalized", "single_word")}

    def role(self):
        k = self.r.random()
        if k < 0.1:
            return None
        if k < 0.4:
            return {"__type": "AddedToken", "content": self.token(), **self.flags()}
        return self.token()

    def some(self, n):
        return [self.token() for _ in range(self.r.randint(0, n))]

    def roles(self):
        return {k: self.role() for k in ("bos_token", "eos_token", "unk_token", "pad_token", "zeta_token", "image_token") if self.r.random() < 0.25}

    def decoder(self, size):
        """added_tokens_decoder, as save_pretrained writes it: ids of the vocabulary and those that follow it."""
        r, ids = self.r, {}
        for i in (0, 1, 2):
            if r.random() < 0.7:
                ids[i] = {"content": CONTROLS[i - 1], **self.flags(), "special": r.random() < 0.9}
        for n, text in enumerate(r.sample(NEW, r.randint(0, 4))):
            ids[size + n + (r.random() < 0.05)] = {"content": text, **self.flags(), "special": r.random() < 0.5}
        for token in ids.values():
            if r.random() < 0.1:
                del token["normalized"]
        return {str(i): ids[i] for i in r.sample(sorted(ids), len(ids))}

    def files(self, size):
        r = self.r
        name = r.choice(list(FAMILIES)[:3] * 3 + list(FAMILIES))
        config = {} if name is None else {"tokenizer_class": name}
        for key, values in (("legacy", [True, False, None]), ("add_prefix_space", [True, False, None]), ("add_bos_token", [True, False]),
                            ("add_eos_token", [True, False])):
            if r.random() < 0.5:
                config[key] = r.choice(values)
        config.update({"eos_token": "</s>"} | self.roles())  # without one, gpupipe looks for a token of a usual name
        for key in ("additional_special_tokens", "extra_special_tokens"):
            if r.random() < 0.2:
                config[key] = r.choice([[], self.some(3), None]) if r.random() < 0.8 else {"video_token": self.token(), "audio_token": self.token()}
        if r.random() < 0.03:
            config["auto_map"] = {"AutoTokenizer": ["own.Tokenizer", None]}
        files = {"tokenizer_config.json": config}
        if r.random() < 0.4:
            config["added_tokens_decoder"] = self.decoder(size)
        if r.random() < 0.3:
            files["special_tokens_map.json"] = self.roles() if r.random() < 0.5 else {"additional_special_tokens": self.some(3)}
        if r.random() < 0.3:
            files["added_tokens.json"] = {text: size + n for n, text in enumerate(r.sample(NEW, r.randint(1, 3)))}
        if r.random() < 0.7:
            files["config.json"] = {"model_type": FAMILIES[name] if r.random() < 0.7 else r.choice(["mistral", "phi3", "gemma2", "internlm2", "own", "olmo", "qwen2"])}
        return files

    def write(self, path):
        """Writes a folder, and returns a line that describes it."""
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        model = self.r.choice(self.models)
        shutil.copy(model, path / "tokenizer.model")
        files = self.files(sentencepiece.SentencePieceProcessor(model_file=str(model)).get_piece_size())
        for name, value in files.items():
            (path / name).write_text(json.dumps(value))
        return model.name, files

    def text(self):
        r = self.r
        parts = [r.choice(SCRIPTS), *self.some(2), "  two   spaces ", " ", "\n", "\t", "the cat's 12 hats", "<0x0A>", "▁", "it"]
        return "".join(r.choice(parts) if r.random() < 0.8 else r.choice(SCRIPTS)[:r.randint(1, 9)] for _ in range(r.randint(1, 8)))


def theirs(path, texts, around):
    """The ids of each text, or None: transformers fails."""
    try:
        t = AutoTokenizer.from_pretrained(str(path))
        end = [] if t.eos_token_id is None else [t.eos_token_id]
        out = []
        for text in texts:
            ids = t.encode(text, add_special_tokens=around)
            if around and t.add_eos_token and end:
                ids = ids[:-1]  # written once
            out.append(ids + end)
        return out
    except Exception:
        return None


def golden(folder, seed):
    """Writes models, and for folders of side files the ids of texts."""
    models, rows = [], []
    for name in ("bpe", "users", "gemma", "no_ends"):
        models.append(folder / f"{name}.model")
        make(name, models[-1], 660)
    folders = Folders(seed, models)
    while len(rows) < 40:
        path = SCRATCH / "folder"
        model, files = folders.write(path)
        texts = [folders.text() for _ in range(8)]
        plain, whole = theirs(path, texts, False), theirs(path, texts, True)
        if plain is not None and "qwen2" not in str(files):
            rows.append({"model": model, "files": files, "texts": texts, "ids": plain, "framed": whole})
    (folder / "golden.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--golden", type=Path)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--folders", type=int, default=150)
    a = a.parse_args()
    if a.golden:
        return golden(a.golden, a.seed)
    models = []
    for name in MADE:
        models.append(SCRATCH / f"{name}.model")
        make(name, models[-1])
    folders, counts, classes, reasons = Folders(a.seed, models), dict(equal=0, refused=0, theirs=0), {}, {}
    for n in range(a.folders):
        path = SCRATCH / "folder"
        what = " ".join(map(str, folders.write(path)))
        texts = list(dict.fromkeys([folders.text() for _ in range(25)] + [s for s in SCRIPTS if s.strip()]))
        around = folders.r.random() < 0.5
        want = theirs(path, texts, around)
        got, message = stream(path, texts, *(["--bos", "auto"] if around else []))
        if want is None:
            counts["theirs"] += 1
        elif got is None:
            counts["refused"] += 1
            if "token" not in message:
                sys.exit(f"folder {n}: {what}: a refusal without a reason: {message}")
            reason = message.strip().splitlines()[0].split(": ", 3)[-1][:60]
            reasons[reason] = reasons.get(reason, 0) + 1
        elif got != sum(want, []):
            at = 0
            for text, ids in zip(texts, want):
                if got[at:at + len(ids)] != ids:
                    sys.exit(f"folder {n}: {what}: {text!r}: found {got[at:at + len(ids)]}, expected {ids}")
                at += len(ids)
            sys.exit(f"folder {n}: {what}: more tokens than expected")
        else:
            counts["equal"] += 1
            name = json.loads((path / "tokenizer_config.json").read_text()).get("tokenizer_class")
            classes[name] = classes.get(name, 0) + 1
    for reason, count in sorted(reasons.items(), key=lambda x: -x[1]):
        print(count, reason)
    if set(list(FAMILIES)[:6]) - set(classes):
        sys.exit(f"no folder of some classes is read: {classes}")
    print(f"{a.folders} folders: {counts['equal']} with equal ids of every text, none with others; {counts['refused']} refused by name, "
          f"{counts['theirs']} that transformers refuses")


if __name__ == "__main__":
    main()
