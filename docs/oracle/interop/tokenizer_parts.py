#!/usr/bin/env python3
"""Compares gpupipe with Hugging Face's tokenizers on tokenizer.json files that are put together from random parts:
normalizers, pre-tokenizers, models, post-processors, decoders and added tokens. Ids and decoded texts are equal, or the
file is refused with an error that names the part; none is different.

It writes the files with texts, ids and decoded texts; Go's test TestGoldenParts of pipeline/data/tokenizer compares them. The
last line of the output is a summary. $SCRATCH is a folder for files.

    tokenizer_parts.py [--seed N] [--files N] [--golden FILE]

--golden writes the file of that test and compares nothing.
"""
import argparse
import base64
import json
import os
import random
import re
import resource
import struct
import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer

from tokenizer_patterns import SCRIPTS

ADDED = ["<s>", "</s>", "<unk>", "<mask>", "[MASK]", "Wort", "ab", "a", " b", "  ", "é", "É", "▁x", "12", "\n", "नम", "'s", "<s>x", "中", "İ"]
TEXTS = SCRIPTS + [
    "", "a  b   c \t d\r\n\r\ne", "  <s>x</s> <unk>a<unk><unk> [MASK]  <mask> ", "ab abab aab Wort Wortab worT", "<0x41><0x0A> ##a b## ▁x▁ ▁▁y", "ſ 'ſ' ſ's I'ſ",
    "I do not. He 's n't here ! a ' b ? , 've 're 'm", "x||yy<pad><pad>zz", "a\u0300\u0316b e\u0301\u0327 \u0344 \u1e9b\u0323 \u212b \u2126", "ｶﾞｷﾞﾊﾟ ㌔ ﷺ ① ﬃ ½ Ⅷ ⁵ ㍿",
    "\u1100\u1161\u11a8 각 \uac00\u11a8 \u1112\u1161\u11ab", "\x00\x01a\x7f\x80\x9f\u200b\u200c\u200d\u200e\u2028\ufeff\ufffd", "မြန်မာဘာသာ ကျွန်တော် ភាសាខ្មែរ ພາສາ བོད་",
    "ΑΣ ΑΣΑ İI ıi ǅ ᾼ ẞß", "👩\u200d👩\u200d👧 🇩🇪🇫🇷 👍🏽 ❤️ 1️⃣", "\u0f71\u0f72\u0f74 \u09c7\u09be \u0b47\u0b56 \u0dd9\u0dca", " a", "\u3000a\u00a0b\u2003 ", "\r\n\r\n", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "\u0600\u0661\u06dd12 \u0903\u0930 ก\u0e33", "¡Hola! «x» — “y” … $€^`~|+=<>",
]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
BYTES = [f"<0x{b:02X}>" for b in range(256)]


class Parts:
    """Makes parts of tokenizers."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def flag(self, p=0.5):
        return self.r.random() < p

    def text(self):
        r = self.r
        if self.flag(0.4):
            return r.choice(TEXTS)
        own = r.choice(TEXTS) + r.choice(TEXTS) or " "
        return "".join(r.choice(own) if self.flag(0.9) else r.choice(ADDED + [" ", "  "]) for _ in range(r.randint(1, 30)))

    def pattern(self):
        r = self.r
        if self.flag(0.6):
            return {"String": r.choice([" ", "  ", "a", "ab", "\n", "▁", ".", "é", "$", "中", "-", "\r\n", "'"])}
        return {"Regex": r.choice([r"\s+", r"\s", r"[^\w]", r"\d", " {2,}", r"^\s+", r"\p{M}+", "a|b", r"\p{P}", r"(?i)ab", r"\n+", "x*", r"\b"])}

    def charsmap(self):
        """A precompiled_charsmap: the trie is darts-clone's, in which each node has a block of 256 units."""
        r = self.r
        keys = ["a", "e\u0301", "ｶ", "ｶﾞ", "ﾞ", "\u1100\u1161", "\u0300", "\r\n", "\t", "\u200d", "\u200b", "Å", "ﬃ", "①", "½", "A", "ab", "नि", "\u0301", "👍", " ", "\x01", "é", "İ", "中", "ς"]
        rules = {k: r.choice(["", " ", "x", "é", "ガ", "ab", "1/2", k + k, k.lower()]) for k in r.sample(keys, r.randint(1, 20))}
        tree = {}
        for k, v in rules.items():
            node = tree
            for b in k.encode():
                node = node.setdefault(b, {})
            node[None] = v
        out, blob = {0: 0}, b""

        def unit(node, place, label):
            nonlocal blob
            children = [0 if b is None else b for b in node]
            base = next(n for n in range(1, 1 << 20) if not any(n ^ b in out for b in children))
            out[place] = (base ^ place) << 10 | label | (1 << 8 if None in node else 0)
            out.update({base ^ b: 0 for b in children})
            if None in node:
                out[base] = 1 << 31 | len(blob)
                blob += node[None].encode() + b"\0"
            for b, child in node.items():
                if b is not None:
                    unit(child, base ^ b, b)

        unit(tree, 0, 0)
        units = [out.get(i, 0) for i in range((max(out) | 255) + 1)]
        return base64.b64encode(struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + blob).decode()

    def normalizer(self, depth=0):
        r = self.r
        kind = r.choice("NFC NFD NFKC NFKD Lowercase Strip StripAccents Replace Prepend BertNormalizer BertNormalizer Precompiled Precompiled ByteLevel Nmt Sequence Sequence".split()
                        + ["Sequence"] * (2 - depth))
        if kind == "Sequence":
            return {"type": kind, "normalizers": [self.normalizer(depth + 1) for _ in range(r.randint(0, 3))]} if depth < 2 else self.normalizer(depth)
        more = {
            "Strip": lambda: {"strip_left": self.flag(), "strip_right": self.flag()},
            "Replace": lambda: {"pattern": self.pattern(), "content": r.choice(["", " ", "▁", "ab", "é", "\n"])},
            "Prepend": lambda: {"prepend": r.choice(["▁", " ", "ab", ""] if self.flag(0.1) else ["▁", " ", "ab"])},
            "Precompiled": lambda: {"precompiled_charsmap": self.charsmap()},
            "BertNormalizer": lambda: {"clean_text": self.flag(), "handle_chinese_chars": self.flag(), "strip_accents": r.choice([None, True, False]), "lowercase": self.flag()},
        }.get(kind, dict)()
        return {"type": kind, **more}

    def metaspace(self):
        return {"type": "Metaspace", "replacement": self.r.choice(["▁", "▁", "_", "é"]), "prepend_scheme": self.r.choice(["always", "first", "never"]), "split": self.flag()}

    def byte_level(self):
        return {"type": "ByteLevel", "add_prefix_space": self.flag(), "trim_offsets": self.flag(), "use_regex": self.flag()}

    def pre_tokenizer(self, depth=0):
        r = self.r
        kind = r.choice("Whitespace WhitespaceSplit BertPreTokenizer Punctuation Digits Metaspace Metaspace ByteLevel CharDelimiterSplit UnicodeScripts FixedLength Split Split "
                        "Sequence Sequence".split())
        if kind == "Sequence":
            if depth > 1:
                return self.pre_tokenizer(depth)
            return {"type": kind, "pretokenizers": [self.pre_tokenizer(depth + 1) for _ in range(r.randint(0, 3))] + ([self.byte_level()] if self.flag(0.3) else [])}
        more = {
            "Punctuation": lambda: {"behavior": r.choice(BEHAVIORS)},
            "Digits": lambda: {"individual_digits": self.flag()},
            "Metaspace": self.metaspace,
            "ByteLevel": self.byte_level,
            "CharDelimiterSplit": lambda: {"delimiter": r.choice([" ", "a", "中", "\n", "-"])},
            "FixedLength": lambda: {"length": r.randint(1, 6)},
            "Split": lambda: {"pattern": self.pattern(), "behavior": r.choice(BEHAVIORS), "invert": self.flag(0.3)},
        }.get(kind, dict)()
        return {"type": kind, **more}

    def decoder(self, depth=0):
        r = self.r
        kind = r.choice("WordPiece BPEDecoder Metaspace ByteFallback Fuse Strip Replace CTC ByteLevel Sequence Sequence Sequence".split())
        if kind == "Sequence":
            return {"type": kind, "decoders": [self.decoder(depth + 1) for _ in range(r.randint(0, 4))]} if depth < 2 else self.decoder(depth)
        more = {
            "WordPiece": lambda: {"prefix": r.choice(["##", "a", ""]), "cleanup": self.flag()},
            "BPEDecoder": lambda: {"suffix": r.choice(["</w>", "a"])},
            "Metaspace": self.metaspace,
            "Strip": lambda: {"content": r.choice(" a▁"), "start": r.randint(0, 2), "stop": r.choice([0, 0, 1])},
            "Replace": lambda: {"pattern": self.pattern(), "content": r.choice(["", " ", "▁", "ab"])},
            "CTC": lambda: {"pad_token": r.choice(["<pad>", "a"]), "word_delimiter_token": r.choice(["|", " "]), "cleanup": self.flag()},
            "ByteLevel": self.byte_level,
        }.get(kind, dict)()
        return {"type": kind, **more}

    def post_processor(self, tokens, depth=0):
        r = self.r
        some = lambda: r.choice(list(tokens.items()))
        kind = r.choice(["TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel", "Sequence"])
        if kind == "Sequence":
            return {"type": kind, "processors": [self.post_processor(tokens, 1) for _ in range(r.randint(0, 3))]} if depth == 0 else self.post_processor(tokens, 1)
        if kind == "ByteLevel":
            return self.byte_level()
        if kind == "TemplateProcessing":
            front, back = [some() for _ in range(r.randint(0, 2))], [some() for _ in range(r.randint(0, 2))]
            piece = lambda t: {"SpecialToken": {"id": t, "type_id": 0}}
            single = [piece(t) for t, _ in front] + [{"Sequence": {"id": "A", "type_id": 0}}] + [piece(t) for t, _ in back]
            return {"type": kind, "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
                    "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in front + back}}
        return {"type": kind, "sep": some(), "cls": some(), **({"trim_offsets": True, "add_prefix_space": self.flag()} if kind[0] == "R" else {})}

    # Models. pieces are those that the pre-tokenizer makes of the texts.

    def characters(self, pieces):
        """The characters of the pieces, without a few of them."""
        all_ = sorted({c for p in pieces for c in p})
        return [c for c in all_ if self.flag(0.97)] if self.flag() else all_

    def word_level(self, pieces):
        words = ["<unk>"] + sorted({p for p in pieces if self.flag(0.8)} - {"<unk>"})
        return {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": "<unk>"}

    def part_of(self, piece):
        a, b = sorted(self.r.sample(range(len(piece) + 1), 2))
        return piece[a:b]

    def word_piece(self, pieces):
        prefix = self.r.choice(["##", "##", "", "é"])
        parts = [self.part_of(p) for p in pieces for _ in range(2)]
        vocab = {"<unk>": None, **dict.fromkeys(self.characters(pieces)), **dict.fromkeys(prefix + c for c in self.characters(pieces)),
                 **dict.fromkeys(parts), **dict.fromkeys(prefix + p for p in parts)}
        return {"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": prefix, "max_input_chars_per_word": self.r.choice([3, 10, 100]),
                "vocab": {t: i for i, t in enumerate(vocab)}}

    def bpe(self, pieces):
        r = self.r
        prefix, suffix = r.choice([("", ""), ("", ""), ("", ""), ("##", ""), ("", "</w>"), ("##", "</w>")])
        form = lambda p, i: (prefix if i else "") + p[i] + (suffix if i == len(p) - 1 else "")
        known = set(self.characters(pieces))
        words = [[form(p, i) if p[i] in known else "<unk>" for i in range(len(p))] for p in pieces[:200]]
        vocab = dict.fromkeys(["<unk>"] + (BYTES if self.flag(0.3) else []) + [s for w in words for s in w])
        merges = {}
        for _ in range(r.randint(0, 80)):
            long = [w for w in words if len(w) > 1]
            if not long:
                break
            w = r.choice(long)
            i = r.randrange(len(w) - 1)
            a, b = w[i], w[i + 1]
            if not b.startswith(prefix):
                continue
            merges[a, b] = None
            vocab[a + b[len(prefix):]] = None
            for w in words:
                for i in range(len(w) - 1, 0, -1):
                    if i < len(w) and (w[i - 1], w[i]) == (a, b):
                        w[i - 1:i + 1] = [a + b[len(prefix):]]
        if not prefix and not suffix and self.flag(0.3):  # the text <unk> becomes the token
            chain = ["<", "u", "n", "k", ">"]
            vocab.update(dict.fromkeys(chain))
            for i in range(1, len(chain)):
                merges["".join(chain[:i]), chain[i]] = None
                vocab["".join(chain[:i + 1])] = None
        return {"type": "BPE", "dropout": r.choice([None, 0.0]), "unk_token": "<unk>" if self.flag(0.8) else None, "continuing_subword_prefix": prefix or None,
                "end_of_word_suffix": suffix or None, "fuse_unk": self.flag(), "byte_fallback": self.flag(), "ignore_merges": self.flag(0.3),
                "vocab": {t: i for i, t in enumerate(vocab)}, "merges": [list(m) for m in merges]}

    def unigram(self, pieces):
        r = self.r
        tokens = dict.fromkeys(self.characters(pieces) + [self.part_of(p) for p in pieces for _ in range(2)])
        tokens = [t for t in tokens if t != "<unk>"] + (BYTES if self.flag() else [])
        return {"type": "Unigram", "unk_id": 0 if self.flag(0.9) else None, "byte_fallback": self.flag(),
                "vocab": [["<unk>", 0.0]] + [[t, -r.choice([1.0, 2.5, r.uniform(0, 12)])] for t in tokens]}

    def added(self, vocab, normalizer):
        """Added tokens. None is empty after the normalizer: such a token is everywhere, and the library never comes to an end
        and takes all memory. gpupipe refuses it."""
        out, known = [], set(vocab)
        following = len(vocab)
        for t in self.r.sample(ADDED, self.r.randint(0, 6)):
            special = self.flag()
            if normalizer and not normalizer.normalize_str(t):
                continue
            id_ = vocab.get(t, following)
            following += t not in known
            out.append({"id": id_, "content": t, "single_word": self.flag(0.3), "lstrip": self.flag(0.3), "rstrip": self.flag(0.3), "normalized": self.flag(), "special": special})
        return sorted(out, key=lambda a: a["id"])

    def file(self, texts):
        maybe = lambda make, p: make() if self.flag(p) else None
        j = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": maybe(self.normalizer, 0.7), "pre_tokenizer": maybe(self.pre_tokenizer, 0.85),
             "post_processor": None, "decoder": maybe(self.decoder, 0.8), "model": {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}}
        t = Tokenizer.from_str(json.dumps(j))
        pieces = []
        for s in texts:
            s = t.normalizer.normalize_str(s) if t.normalizer else s
            pieces += [p for p, _ in t.pre_tokenizer.pre_tokenize_str(s)] if t.pre_tokenizer else [s]
        pieces = [p for p in pieces if p] or ["a"]
        self.r.shuffle(pieces)
        j["model"] = self.r.choice([self.word_level, self.word_piece, self.bpe, self.bpe, self.unigram])(pieces[:400])
        vocab = j["model"]["vocab"]
        vocab = {t: i for i, (t, _) in enumerate(vocab)} if isinstance(vocab, list) else vocab
        j["added_tokens"] = self.added(vocab, t.normalizer)
        if self.flag(0.4):
            j["post_processor"] = self.post_processor({**{t: vocab[t] for t in list(vocab)[:3]}, **{a["content"]: a["id"] for a in j["added_tokens"]}})
        return j


def attempt(f, *args):
    """The result; None if the library fails. Some of its errors are panics."""
    try:
        return f(*args)
    except BaseException as e:
        if isinstance(e, (KeyboardInterrupt, SystemExit)):
            raise
        return None


def golden(path, parts, count):
    """Writes files with a few texts, their ids and what these decode as; null where the library fails."""
    rows = []
    while len(rows) < count:
        texts = [s for s in (parts.text() for _ in range(5)) if 0 < len(s) < 60]
        j = attempt(parts.file, texts)
        t = j and attempt(Tokenizer.from_str, json.dumps(j))
        if t is None or len(json.dumps(j)) > 6000:
            continue
        ids = [attempt(lambda: t.encode(s).ids) for s in texts]
        back = [None if i is None else attempt(lambda: t.decode(i, skip_special_tokens=False)) for i in ids]
        rows.append({"tokenizer": j, "texts": texts, "ids": ids, "decoded": back})
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "\n]\n")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--files", type=int, default=400)
    a.add_argument("--golden")
    a = a.parse_args()
    path = a.golden or str(Path(os.environ.get("SCRATCH", "/tmp")) / "parts.json")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, hard))
    errors = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # panics of the library
    try:
        golden(path, Parts(a.seed), a.files)
    finally:
        os.dup2(errors, 2)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    if a.golden:
        return
    done = subprocess.run(["go", "test", "./pipeline/data/tokenizer", "-run", "^TestGoldenParts$", "-count=1", "-v", "-args", "-parts", path],
                          cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        print(done.stdout[:8000])
        sys.exit(1)
    print(re.search(r"\d+ files: .*", done.stdout)[0])


if __name__ == "__main__":
    main()
