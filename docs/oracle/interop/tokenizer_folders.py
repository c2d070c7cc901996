#!/usr/bin/env python3
"""Compares how gpupipe and AutoTokenizer of transformers read folders with a tokenizer.json, whose tokenizer_config.json names
a class: families of tokenizers × classes × side files × texts in many scripts. Ids are equal, or the folder is refused, or a
note names a class whose rules gpupipe does not know.

$GPUPIPE is the program, $SCRATCH a folder for files. The last line of the output is a summary.

    tokenizer_folders.py [--seed N] [--folders N] [--golden FILE]

--golden writes folders and the ids of transformers for the tests of pipeline/data/tokenizer instead.
"""
import argparse
import json
import os
import random
import shutil
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402
from transformers import AutoTokenizer, logging  # noqa: E402

from token_stream import SCRATCH, stream  # noqa: E402
from tokenizer_patterns import SCRIPTS  # noqa: E402

logging.set_verbosity(logging.CRITICAL)
GPT4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CORPUS = [s for s in SCRIPTS if s.strip()] * 3 + ["the cat's 12 hats  on the mat, that's that. It IS 2024 x123", "def f(x):\n    return x  # note\r\n"] * 10
TEXTS = ["", "  1 2 12 123  1234 x1 1x", "a\r\nb\r\n\r\n c", "  two   spaces ", "I'LL don't 'ſ", "ÅA\u030a e\u0301 Ⅷ ﬁ", "Café NAÏVE 中文字", "def f(x):\n\n    return  x", "<0x0A>▁x▁"]
CLASSES = {
    "gpt2": ["GPT2Tokenizer", "GPT2TokenizerFast", "CodeGenTokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer", "LlamaTokenizer", "RobertaTokenizer", "BloomTokenizerFast"],
    "digits": ["GPT2Tokenizer", "GPT2TokenizerFast", "CohereTokenizer", "CohereTokenizerFast", "GPTNeoXTokenizerFast"],
    "gpt4": ["LlamaTokenizerFast", "Qwen2Tokenizer", "Qwen2TokenizerFast", "Qwen3_5Tokenizer", "GPT2Tokenizer", "PreTrainedTokenizerFast"],
    "qwen2": ["Qwen2Tokenizer", "Qwen2TokenizerFast", "Qwen3_5Tokenizer", "GPTNeoXTokenizer"],
    "neox": ["GPTNeoXTokenizer", "GPTNeoXTokenizerFast", "GPT2Tokenizer", "WhisperTokenizer"],
    "roberta": ["RobertaTokenizer", "RobertaTokenizerFast", "BartTokenizer", "LongformerTokenizer", "GPT2Tokenizer"],
    "llama": ["LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "CodeLlamaTokenizer", "T5Tokenizer"],
    "metaspace": ["LlamaTokenizer", "LlamaTokenizerFast", "PreTrainedTokenizerFast"],
    "gemma": ["GemmaTokenizer", "GemmaTokenizerFast", "LlamaTokenizer"],
    "bert": ["BertTokenizer", "BertTokenizerFast", "ElectraTokenizerFast", "DistilBertTokenizer", "ConvBertTokenizer", "PreTrainedTokenizerFast"],
    "unigram": ["T5Tokenizer", "XLMRobertaTokenizer", "LlamaTokenizer", "PreTrainedTokenizerFast"],
}
MODEL_TYPES = ["llama", "mistral", "gpt2", "qwen2", "qwen3", "gpt_neox", "olmo2", "gemma2", "phi3", "starcoder2", "own", "bert", "roberta", "cohere", "smollm3"]
NEW = ["<|im_start|>", "<|im_end|>", "<pad>", "<|new token|>", "wide ", "नम", "é!", "<mask>", "[MASK]"]


def byte_level(**flags):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **flags})


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(use_regex=False)])


def trained(model, trainer, pre, normalizer=None, decoder=None, post=None):
    t = Tokenizer(model)
    t.pre_tokenizer, t.decoder = pre, decoder
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator(CORPUS, trainer)
    if post:
        t.post_processor = post(t)
    return json.loads(t.to_str())


def byte_bpe(pre, special, normalizer=None, post=None, size=600):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    return trained(models.BPE(), trainer, pre, normalizer, decoders.ByteLevel(), post)


def with_bytes(j, special):
    """A BPE of characters with tokens for all bytes behind the special ones."""
    vocab = special + [f"<0x{b:02X}>" for b in range(256)]
    vocab += [t for t in j["model"]["vocab"] if t not in vocab]
    j["model"].update(vocab={t: i for i, t in enumerate(vocab)}, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    j["added_tokens"] = [{"id": vocab.index(t), "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for t in special]
    return j


def families(size=600):
    """tokenizer.json files. Those of bytes have size tokens, others a few more."""
    r = {}
    end = ["<|endoftext|>"]
    bos = lambda t: processors.TemplateProcessing(single="<|endoftext|> $A", pair="$A $B", special_tokens=[("<|endoftext|>", t.token_to_id("<|endoftext|>"))])
    r["gpt2"] = byte_bpe(byte_level(), end, size=size)
    r["digits"] = byte_bpe(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()]), end + ["<|im_start|>"], size=size)
    r["gpt4"] = byte_bpe(split(GPT4 % "{1,3}"), end, post=bos, size=size)
    r["qwen2"] = byte_bpe(split(GPT4 % ""), end + ["<|im_end|>"], normalizers.NFC(), size=size)
    r["neox"] = byte_bpe(byte_level(), end + ["<|padding|>"], normalizers.NFC(), bos, size)
    r["roberta"] = byte_bpe(byte_level(), ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], post=lambda t: processors.RobertaProcessing(("</s>", 2), ("<s>", 0)), size=size)
    special = ["<unk>", "<s>", "</s>"]
    chars = trainers.BpeTrainer(vocab_size=size + 300, special_tokens=special, show_progress=False)
    spaces = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    post = lambda t: processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    cut = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    j = trained(models.BPE(), chars, cut, None, spaces, post)
    r["metaspace"] = with_bytes(json.loads(json.dumps(j)), special)
    r["metaspace"]["pre_tokenizer"].update(split=False, prepend_scheme="first")
    r["llama"] = with_bytes(j, special)
    r["llama"].update(pre_tokenizer=None, normalizer={"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    j = trained(models.BPE(), trainers.BpeTrainer(vocab_size=size + 300, special_tokens=special, show_progress=False), pre_tokenizers.Metaspace(prepend_scheme="never"))
    r["gemma"] = with_bytes(j, special)
    r["gemma"].update(pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
                      normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    around = lambda t: processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    r["bert"] = trained(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=size + 300, special_tokens=special, show_progress=False),
                        pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer(lowercase=True), decoders.WordPiece(), around)
    special = ["<pad>", "</s>", "<unk>"]
    r["unigram"] = trained(models.Unigram(), trainers.UnigramTrainer(vocab_size=size + 300, special_tokens=special, unk_token="<unk>", show_progress=False),
                           pre_tokenizers.Metaspace(), None, decoders.Metaspace())
    return r


class Folders:
    """Makes folders and texts."""

    def __init__(self, seed, families):
        self.r, self.families = random.Random(seed), families

    def flags(self):
        return {k: self.r.random() < 0.3 for k in ("lstrip", "rstrip", "normalized", "single_word")}

    def config(self, family, j):
        r = self.r
        named = CLASSES[family]
        name = r.choice(named) if r.random() < 0.85 else r.choice([None, "PreTrainedTokenizerFast", "TokenizersBackend", "OwnTokenizer"])
        config = {} if name is None else {"tokenizer_class": name}
        for key in ("add_prefix_space", "add_bos_token", "add_eos_token", "legacy", "do_lower_case", "tokenize_chinese_chars", "strip_accents"):
            if r.random() < 0.25:
                config[key] = r.random() < 0.5
        special = [a["content"] for a in j["added_tokens"]]
        for role in ("bos_token", "eos_token", "unk_token", "pad_token", "mask_token"):
            if r.random() < 0.3:
                token = r.choice(special if r.random() < 0.8 else NEW)
                config[role] = token if r.random() < 0.7 else {"__type": "AddedToken", "content": token, **self.flags()}
        if "eos_token" not in config:  # without one, gpupipe looks for a token of a usual name
            config["eos_token"] = special[0]
        if r.random() < 0.3:
            config[r.choice(["additional_special_tokens", "extra_special_tokens"])] = r.sample(NEW, r.randint(0, 3))
        if r.random() < 0.4:
            ids = {a["id"]: {k: v for k, v in a.items() if k != "id"} for a in j["added_tokens"] if r.random() < 0.95}
            size = max(j_ids(j)) + 1
            for n, text in enumerate(r.sample(NEW, r.randint(0, 3))):
                ids[size + n] = {"content": text, **self.flags(), "special": r.random() < 0.5}
            config["added_tokens_decoder"] = {str(i): t for i, t in ids.items()}
        return config

    def write(self, path):
        """Writes a folder, and returns a line that describes it."""
        r = self.r
        family = r.choice(list(self.families))
        j = json.loads(json.dumps(self.families[family]))
        if r.random() < 0.3:
            j["added_tokens"] += [{"id": max(j_ids(j)) + 1, "content": "<|im_end|>x", **self.flags(), "special": r.random() < 0.5}]
        if r.random() < 0.2:
            j["model"]["ignore_merges"] = True
        files = {"tokenizer.json": j, "tokenizer_config.json": self.config(family, j)}
        if r.random() < 0.6:
            files["config.json"] = {"model_type": r.choice(MODEL_TYPES)}
        if r.random() < 0.15:
            files["special_tokens_map.json"] = {"additional_special_tokens": r.sample(NEW, 2)}
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        for name, value in files.items():
            (path / name).write_text(json.dumps(value))
        return family, files

    def text(self):
        r = self.r
        parts = [r.choice(SCRIPTS), r.choice(TEXTS), r.choice(NEW + ["<|endoftext|>", "<s>", "</s>", "[SEP]", "<unk>"]), " ", "\n", "\t", "7", "it"]
        return "".join(r.choice(parts) if r.random() < 0.8 else r.choice(SCRIPTS)[:r.randint(1, 9)] for _ in range(r.randint(1, 7)))


def j_ids(j):
    vocab = j["model"]["vocab"]
    return [a["id"] for a in j["added_tokens"]] + (list(range(len(vocab))) if isinstance(vocab, list) else list(vocab.values()))


def theirs(path, texts, around):
    """The ids of each text and the end of a document, or None: transformers fails."""
    try:
        t = AutoTokenizer.from_pretrained(str(path))
        end = [] if t.eos_token_id is None else [t.eos_token_id]
        plain = t.encode("a", add_special_tokens=False)
        if around and end and t.encode("a")[-len(plain) - 1:] == plain + end:
            end = []  # written once
        return type(t).__name__, [t.encode(text, add_special_tokens=around) + end if text else [] for text in texts]
    except Exception:
        return None, None


def golden(path, seed):
    """Writes small families, and for folders the ids of texts."""
    folders, rows = Folders(seed, families(320)), []
    del folders.families["unigram"], folders.families["gpt2"], folders.families["metaspace"]
    while len(rows) < 60:
        family, files = folders.write(SCRATCH / "folder")
        texts = [s for s in (folders.text() for _ in range(9)) if 0 < len(s) < 80]
        name, plain = theirs(SCRATCH / "folder", texts, False)
        _, whole = theirs(SCRATCH / "folder", texts, True)
        if plain is not None:
            j = files.pop("tokenizer.json")
            rows.append({"family": family, "class": name, "added": j["added_tokens"], "ignore_merges": j["model"].get("ignore_merges", False), "files": files,
                         "texts": texts, "ids": plain, "framed": whole})
    line = lambda v: json.dumps(v, ensure_ascii=False, separators=(",", ":"))
    path.write_text('{"families":%s,\n"rows":[\n%s\n]}\n' % (line(folders.families), ",\n".join(map(line, rows))))


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--golden", type=Path)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--folders", type=int, default=200)
    a = a.parse_args()
    if a.golden:
        return golden(a.golden, a.seed)
    folders, counts, classes = Folders(a.seed, families()), dict(equal=0, refused=0, noted=0, theirs=0), {}
    for n in range(a.folders):
        path = SCRATCH / "folder"
        family, files = folders.write(path)
        what = f"{family} {({k: v for k, v in files.items() if k != 'tokenizer.json'})}"
        texts = list(dict.fromkeys([folders.text() for _ in range(20)] + TEXTS + SCRIPTS))
        around = folders.r.random() < 0.5
        name, want = theirs(path, texts, around)
        got, message = stream(path, texts, *(["--bos", "auto"] if around else []))
        if want is None:
            counts["theirs"] += 1
        elif got is None:
            counts["refused"] += 1
            print("refused:", message.strip().splitlines()[-1][:200])
        elif "which gpupipe does not know" in message:
            counts["noted"] += 1
        elif got != sum(want, []):
            at = 0
            for text, ids in zip(texts, want):
                if got[at:at + len(ids)] != ids:
                    sys.exit(f"folder {n}: {what}: {name}: {text!r}: found {got[at:at + len(ids)]}, expected {ids}")
                at += len(ids)
            sys.exit(f"folder {n}: {what}: more tokens than expected")
        else:
            counts["equal"] += 1
            classes[name] = classes.get(name, 0) + 1
    missing = {"LlamaTokenizer", "GemmaTokenizer", "GPT2Tokenizer", "CodeGenTokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer", "Qwen3_5Tokenizer", "CohereTokenizer",
               "RobertaTokenizer", "BertTokenizer", "TokenizersBackend"} - set(classes)
    if missing:
        sys.exit(f"no folder of {missing} is read")
    print(f"{a.folders} folders of {len(classes)} classes: {counts['equal']} with equal ids of every text, none with others; {counts['refused']} refused by name, "
          f"{counts['noted']} with a note, {counts['theirs']} that transformers refuses")


if __name__ == "__main__":
    main()
