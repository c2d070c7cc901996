#!/usr/bin/env python3
"""Compares how gpupipe and Hugging Face's tokenizers cut texts in many scripts by patterns: public ones, and ones made from
a grammar of Oniguruma's syntax. Equal or refused, none different.

$GPUPIPE is the program, $SCRATCH a folder for files. The last line of the output is a summary.

    tokenizer_patterns.py [--seed N] [--patterns N] [--golden FILE]

--golden writes patterns, texts and Hugging Face's pieces for the tests of internal/oniguruma instead.
"""
import argparse
import json
import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

GPUPIPE, SCRATCH = os.environ.get("GPUPIPE", "gpupipe"), Path(os.environ.get("SCRATCH", "/tmp"))
CASE = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}"
HAN = "&&[^\\p{Han}]]"
START = r"[^\r\n\p{L}\p{N}]?"
PUBLIC = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "llama3": CASE + "|" + START + r"\p{L}+|\p{N}{1,3}" + TAIL,
    "qwen2": CASE + "|" + START + r"\p{L}+|\p{N}" + TAIL,
    "qwen3.5": CASE + "|" + START + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": START + UPPER + "]*" + LOWER + "]+" + CASE + "?|" + START + UPPER + "]+" + LOWER + "]*" + CASE
             + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "tekken": START + UPPER + "]*" + LOWER + "]+|" + START + UPPER + "]+" + LOWER + r"]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "kimi": r"[\p{Han}]+|" + START + UPPER + HAN + "*" + LOWER + HAN + "+" + CASE + "?|" + START + UPPER + HAN + "+" + LOWER + HAN + "*" + CASE
            + r"?|\p{N}{1,3}" + TAIL,
    "nanochat": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "falcon": r"[0-9][0-9][0-9]",
    "deepseek": "[\\r\\n]",
    "deepseek-letters": "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤ]+",
    "deepseek-signs": r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    "deepseek-space": r"\s+$",
    "deepseek-cjk": "[一-龥ࠀ-一가-퟿]+",
    "deepseek-v3": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "words": r"\w+|[^\w\s]+",
    "chatglm": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "lines": r"^\s+|\s+$|\n",
    "posix": r"[[:punct:]]+|[[:alpha:]]+|[[:digit:]]+",
    "clusters": r"\X",
    "newlines": r"\R",
}
SCRIPTS = [
    "Hello WORLD don't I'LL we'Re 'ſquire ſtraße ẞ ﬁ ﬀ ﬆ K Å naïve", "नमस्ते हिन्दी भाषा क्षि ज्ञ\u200dान", "தமிழ் மொழி கொ", "မြန်မာ ဘာသာ", "ไทยภาษา ที่นี่", "中文 漢字、。𠮷",
    "ひらがな カタカナ ｶﾞｷﾞ", "한국어 \u1100\u1161\u11a8", "العربية لُغَةٌ ٣٤، ؟", "עברית שָׁלוֹם", "Ελληνικά ΐ ΰ ς Σ ῼ", "Привет ЁЖ їжак", "ქართული Ა", "አማርኛ",
    "\n\n\r\n \t\u00a0\u2028\u3000\x85\u2029", "0123 ½ ² ४५ Ⅷ 12345", "👩\u200d👩\u200d👧 🇩🇪🇫🇷 👍🏽 e\u0301", "-_.,!?…$+<>[](){}&#|*^~`'\"\\/@=;:", "ǅ ŉ ǰ i̇ İ ı ß",
    "\U00010d4a\U0001e5d0\U000105c0 \u1c89 \U0002ebf0", "x\x0b\x0c\x1c\u200b\u200d\ufeff",
]
PROPERTIES = ("L N Lu Ll Lt Lm Lo M Mn P S Z Zs C Cf Han Hiragana Katakana Latin Cyrillic Arabic Hangul Thai Devanagari Greek Alpha Alnum Punct Space "
              "Upper Lower Digit Word ASCII Emoji Extended_Pictographic Any Nd Script=Han XDigit White_Space InBasicLatin Letter Uppercase_Letter "
              "Assigned l han Grek Graph Print Cntrl Blank Nope PosixPunct ID_Start Cn").split()
POSIX = "alpha digit punct space upper lower alnum word xdigit cntrl graph print blank ascii nope".split()
TEXTS = list("abcsStTfiklßſK '-_1,.!") + ["中", "한", "ش", "न", "्", "é", "ẞ", "ﬁ", "ς", "σ", "ŉ", "İ", "ı", "i̇", "ss", "st", "ffi", "\\n", "\\r", "\\t", "\\.", "\\-",
         "\\x41", "\\x{3b1}", "\\u0053", "\\x{1F44D}", "'s", "\\ ", "\\/", "#", "&", "@", "]", "}", "\\e", "\\0", "\\101", "\\xC3\\x9F"]
RANGES = ["a-z", "A-Z", "0-9", "à-ÿ", "α-ω", "一-鿿", "\\x{400}-\\x{4ff}", "ぁ-ん", "A-z", "!-/", "\\u0900-\\u097F", "s-ẞ"]
QUANTIFIERS = ("* + ? *? +? ?? *+ ++ ?+ {2} {1,3} {,2} {2,} {1,2}? {2}? {2}+ {1,2}+ {3,1} {0,1} {1} {,} {x} +* ?+* {0} ** +?+ {1,} {1,}+ {0,}?").split()
GROUPS = ["(?:%s)", "(%s)", "(?i:%s)", "(?>%s)", "(?=%s)", "(?!%s)", "(?<=%s)", "(?<!%s)", "(?:%s)", "(?i:%s)", "(?-i:%s)", "(?x: %s )", "(?W:%s)", "(?S:%s)",
          "(?D:%s)", "(?P:%s)", "(?mi:%s)", "(?<n>%s)"]
PLACES = ["^", "$", "\\A", "\\z", "\\Z", "\\b", "\\B", "\\G", "\\y", "\\Y"]


class Grammar:
    """Makes patterns and texts."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def some(self, least, most, make):
        return "".join(make() for _ in range(self.r.randint(least, most)))

    def text(self):
        r, all_ = self.r, "".join(SCRIPTS)
        own = r.choice([r.choice(SCRIPTS), all_, "ab sS1\n'tf-ſ"])
        return self.some(1, 25, lambda: r.choice(own if r.random() < 0.8 else all_))

    def property(self):
        return "\\" + self.r.choice("ppP") + "{" + self.r.choice(["", "", "^"]) + self.r.choice(PROPERTIES) + "}"

    def type(self):
        return "\\" + self.r.choice("wWdDsShH")

    def member(self, depth):
        r, k = self.r, self.r.random()
        if k < 0.3:
            return r.choice(TEXTS)
        if k < 0.45:
            return r.choice(RANGES)
        if k < 0.6:
            return self.type()
        if k < 0.8:
            return self.property()
        if k < 0.88:
            return "[:" + r.choice(["", "^"]) + r.choice(POSIX) + ":]"
        if k < 0.95 and depth < 3:
            return self.cls(depth + 1)
        return r.choice(["^", "-", "&&", "&", "[", "\\b", "\\]", "\\[", "\\\\", "\\^", "$", "|", "(", ")", "\\R", "\\pL", "\\n\\r", "."])

    def cls(self, depth=0):
        out = self.some(1, 4, lambda: self.member(depth))
        if self.r.random() < 0.2:
            out += "&&" + self.some(1, 3, lambda: self.member(depth))
        return "[" + self.r.choice(["", "", "^"]) + out + "]"

    def atom(self, depth):
        r, k = self.r, self.r.random()
        if k < 0.25:
            return self.some(1, 3, lambda: r.choice(TEXTS))
        if k < 0.45:
            return self.cls()
        if k < 0.55:
            return self.type()
        if k < 0.68:
            return self.property()
        if k < 0.74:
            return r.choice([".", "\\R", "\\X", "\\N", "\\O", "\\pL", "\\K", "(?m:.)"])
        if k < 0.82:
            return r.choice(PLACES)
        return "a" if depth > 3 else r.choice(GROUPS) % self.pattern(depth + 1)

    def branch(self, depth):
        r = self.r
        out = self.some(1, 3, lambda: self.atom(depth) + ("" if r.random() < 0.5 else r.choice(QUANTIFIERS)))
        if r.random() < 0.04:
            out = r.choice(["(?i)", "(?x)", "(?m)", "(?-i)", "(?#x)", "(?W)", "(?~a)", "\\1", "\\k<n>", "(?(1)a)", "\\g<1>"]) + out
        return out

    def pattern(self, depth=0):
        return "|".join(self.branch(depth) for _ in range(self.r.choice([1, 1, 2, 3]) if depth else self.r.randint(1, 4)))


def build(pattern, behavior, invert):
    """A tokenizer whose ids tell where pieces end, as the last byte of a piece has an id of its own; None: refused."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<|endoftext|>": 0, **{s: 1 + i for i, s in enumerate(letters + [s + "</w>" for s in letters])}}
    t = Tokenizer(models.BPE(vocab=vocab, merges=[], end_of_word_suffix="</w>"))
    try:
        split = pre_tokenizers.Split(Regex(pattern), behavior, invert)
    except BaseException:  # its errors are panics, too
        return None
    t.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    return t


def ours(t, texts):
    """The ids of each text; None: refused."""
    t.save(str(SCRATCH / "tokenizer.json"))
    (SCRATCH / "texts.jsonl").write_text("".join(json.dumps({"text": s}) + "\n" for s in texts))
    shutil.rmtree(SCRATCH / "out", ignore_errors=True)  # shards of another tokenizer are kept
    done = subprocess.run([GPUPIPE, "data", "--tokenizer", str(SCRATCH / "tokenizer.json"), "--out", str(SCRATCH / "out"), str(SCRATCH / "texts.jsonl")],
                          capture_output=True, text=True)
    if done.returncode != 0:
        if "pattern" not in done.stderr and "no tokens" not in done.stderr:
            sys.exit(f"a refusal that does not name the pattern: {done.stderr[-500:]}")
        return None
    shard = (SCRATCH / "out" / "train_000001.bin").read_bytes()
    count = struct.unpack_from("<3i", shard)[2]
    out = [[]]
    for i in struct.unpack_from(f"<{count}H", shard, 1024):
        out.append([]) if i == 0 else out[-1].append(i)
    return out[:-1]


def theirs(t, texts):
    try:
        return [t.encode(s, add_special_tokens=False).ids for s in texts]
    except BaseException:  # a pattern that backtracks without end panics
        return None


def golden(path, grammar, count):
    rows = []
    patterns = list(PUBLIC.values())
    while len(rows) < count:
        public = len(patterns) > 0
        pattern = patterns.pop(0) if public else grammar.pattern()
        texts = SCRIPTS if public else [grammar.text() for _ in range(3)]
        if len(pattern) < 60 or public:
            try:
                split = pre_tokenizers.Split(Regex(pattern), "isolated")
                rows.append({"pattern": pattern, "cases": [[s] + [p for p, _ in split.pre_tokenize_str(s)] for s in texts]})
            except BaseException:
                rows.append({"pattern": pattern, "refused": True})
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(r, ensure_ascii=True) for r in rows) + "\n]\n")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--patterns", type=int, default=600)
    a.add_argument("--golden")
    a = a.parse_args()
    grammar = Grammar(a.seed)
    if a.golden:
        return golden(a.golden, grammar, a.patterns)
    counts = dict(equal=0, refused=0, both=0)
    patterns = [(p, b, i) for p in PUBLIC.values() for b, i in (("isolated", False), ("removed", True), ("merged_with_previous", False),
                                                                ("merged_with_next", False), ("contiguous", False))]
    while len(patterns) < a.patterns:
        behavior = grammar.r.choice(["isolated", "isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"])
        patterns.append((grammar.pattern(), behavior, grammar.r.random() < 0.2))
    for n, (pattern, behavior, invert) in enumerate(patterns):
        t = build(pattern, behavior, invert)
        if t is None:
            counts["both"] += 1
            continue
        texts = (SCRIPTS if pattern in PUBLIC.values() else []) + [grammar.text() for _ in range(12)]
        want, got = theirs(t, texts), ours(t, texts)
        if got is None or want is None:
            counts["refused"] += 1
            if pattern in PUBLIC.values():
                sys.exit(f"the public pattern {pattern!r} is refused")
            continue
        for text, w, g in zip(texts, want, got, strict=True):
            if w != g:
                sys.exit(f"{pattern!r} ({behavior}, invert {invert}) cuts {text!r} otherwise: ids {g}, expected {w}")
            counts["equal"] += 1
    print(f"{len(patterns)} patterns ({len(PUBLIC)} public ones with each behavior): {counts['equal']} texts cut alike, none otherwise; "
          f"{counts['refused']} patterns refused, {counts['both']} that tokenizers refuses too")


if __name__ == "__main__":
    main()
