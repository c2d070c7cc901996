"""Trains the small unigram tokenizers of this folder with SentencePiece and writes golden_unigram.json.

Development-time only. Needs the Python packages `tokenizers` (0.23.3), `sentencepiece` (0.2.3) and `protobuf`, and as
text the King James Bible (Debian: `bible -f gen1:1-rev22:21 > kjv.txt`). The texts are those of golden.json.
Usage: python make_unigram_goldens.py kjv.txt
       python make_unigram_goldens.py --fuzz kjv.txt DIR writes large tokenizers and random texts to compare with.
"""
import json, os, random, shutil, sys, tempfile
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

here = os.path.dirname(os.path.abspath(__file__))
accents = "Ça va très bien, l'été à Zürich; naïve façade. Привет, мир! 你好，世界。 こんにちは 안녕하세요 مرحبا ﬁne ＡＢＣ１２３ ½ "
RULES = {"\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u3000": " ", "ﬁ": "fi", "½": "1⁄2", "e\u0301": "é", "，": ",", "。": ".", "\u200d": "",
         "…": "...", "①": "1", "A\u030a": "Å", **{chr(0xFF01 + i): chr(0x21 + i) for i in range(94)}}


def spm(text, folder, name, **options):
    rules = os.path.join(folder, "rules.tsv")
    with open(rules, "w") as f:
        for a, b in RULES.items():
            print(" ".join("%X" % ord(c) for c in a), " ".join("%X" % ord(c) for c in b), sep="\t", file=f)
    prefix = os.path.join(folder, name)
    if options.pop("rules", False):
        options["normalization_rule_tsv"] = rules
    lines = [line for line in text.splitlines() if line][:4000]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_prefix=prefix, minloglevel=2, num_threads=1, **options)
    m = proto.ModelProto()
    m.ParseFromString(open(prefix + ".model", "rb").read())
    return m


def unigram(m, byte_fallback=False):
    return Tokenizer(models.Unigram([(p.piece, p.score) for p in m.pieces], m.trainer_spec.unk_id, byte_fallback))


def t5(m):
    t = unigram(m)
    t.normalizer = normalizers.Sequence([normalizers.Precompiled(m.normalizer_spec.precompiled_charsmap), normalizers.Strip(left=False, right=True),
                                         normalizers.Replace(Regex(" {2,}"), "▁")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    t.decoder = decoders.Metaspace("▁", "always")
    t.add_special_tokens(["</s>", AddedToken("<extra_id_0>", rstrip=True)])
    return t


def xlmr(m):
    t = unigram(m)
    t.normalizer = normalizers.Precompiled(m.normalizer_spec.precompiled_charsmap)
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")])
    t.decoder = decoders.Metaspace("▁", "always")
    t.add_special_tokens(["<s>", "</s>"])
    return t


def albert(m):
    t = unigram(m)
    t.normalizer = normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents(),
                                         normalizers.Lowercase(), normalizers.Nmt(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    t.decoder = decoders.Metaspace("▁", "always")
    t.add_special_tokens(["<s>", "</s>"])
    return t


def llama(m):
    """A whole text is one word; unknown characters are bytes."""
    t = unigram(m, byte_fallback=True)
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.add_special_tokens(["<s>", "</s>"])
    return t


def mistral(m):
    """A whole text is one word, and only its beginning gets a space."""
    t = unigram(m, byte_fallback=True)
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.add_special_tokens(["<s>", "</s>"])
    return t


PLAIN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True, "allow_whitespace_only_pieces": True}
SMALL = [
    ("t5-style", t5, {"vocab_size": 420, "rules": True}), ("albert-style", albert, {"vocab_size": 350, "normalization_rule_name": "identity"}),
    ("llama-unigram-style", llama, {"vocab_size": 620, **PLAIN}),
]
FILES = [  # tokenizer.model as SentencePiece writes it, with SentencePiece's own encodings
    ("sentencepiece-bpe", {"vocab_size": 420, "model_type": "bpe", "split_digits": True, **PLAIN}),
    ("sentencepiece-unigram", {"vocab_size": 640, "rules": True, "byte_fallback": True}),
]
LARGE = [
    ("t5", t5, {"vocab_size": 5000, "hard_vocab_limit": False}), ("xlmr", xlmr, {"vocab_size": 5000, "hard_vocab_limit": False, "normalization_rule_name": "nmt_nfkc_cf"}),
    ("albert", albert, {"vocab_size": 5000, "hard_vocab_limit": False}), ("llama", llama, {"vocab_size": 5000, "hard_vocab_limit": False, **PLAIN}),
    ("mistral", mistral, {"vocab_size": 5000, "hard_vocab_limit": False, **PLAIN}),
]


def rows(t, texts):
    out = []
    for s in texts:
        ids = t.encode(s, add_special_tokens=False).ids
        out.append({"ids": ids, "text": t.decode(ids, skip_special_tokens=False)})
        if out[-1]["text"] == s:
            del out[-1]["text"]
    return out


def pieces(sp, s):
    """SentencePiece's encoding of a text; none where the text spells a control token or a byte: there SentencePiece differs
    from Hugging Face's library."""
    if any(token in s for token in ("<s>", "</s>", "▁", "<unk>", "<0x")):
        return None
    ids = sp.encode(s)
    text = sp.decode(ids)
    return {"ids": ids} if text == s else {"ids": ids, "text": text}


def write(path, golden):
    with open(path, "w", encoding="utf8") as f:
        json.dump(golden, f, ensure_ascii=True, separators=(",", ":"))


def convert(m, make, path):
    make(m).save(path, pretty=False)
    return Tokenizer.from_file(path)


def random_texts(corpus, count):
    rng = random.Random(3)
    marks = ["\u0301", "\u0308", "\u200d", "\ufe0f", "\u20e3", "\u0903", "\u0e33", "🇨🇭", "👩‍👩‍👧", "👍🏽", "각", "ᄀ", "ᅡ", "ᆨ", "\r\n", "<extra_id_0>", "</s>", "``", "''", "▁"]
    # No marks or compatibility characters that are younger than Unicode 9, which Hugging Face's library does not know.
    ranges = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0x9F0), (0x1100, 0x1200), (0x2000, 0x2800), (0x3000, 0x3100),
              (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xF900, 0xFFFE), (0x1F300, 0x1FAFF), (1, 0x20), (0x10000, 0x10500)]
    for _ in range(count):
        s = ""
        for _ in range(rng.randrange(1, 12)):
            kind = rng.random()
            if kind < 0.4:
                at = rng.randrange(len(corpus) - 40)
                s += corpus[at:at + rng.randrange(1, 40)]
            elif kind < 0.6:
                s += rng.choice(marks)
            elif kind < 0.7:
                s += " " * rng.randrange(1, 4)
            else:
                a, b = rng.choice(ranges)
                s += "".join(chr(rng.randrange(a, b)) for _ in range(rng.randrange(1, 6)))
        yield s


def main():
    fuzz = sys.argv[1] == "--fuzz"
    kjv = open(sys.argv[1 + fuzz], encoding="utf8", errors="ignore").read()
    corpus = kjv[:200_000] + "\n" + (accents + "\n") * 30
    with tempfile.TemporaryDirectory() as tmp:
        if fuzz:
            texts, tokenizers = list(random_texts(corpus, 20000)), {}
            for name, make, options in LARGE:
                m = spm(corpus, tmp, name, **options)
                tokenizers[name] = rows(convert(m, make, os.path.join(sys.argv[3], name + ".json")), texts)
            write(os.path.join(sys.argv[3], "golden.json"), {"texts": texts, "tokenizers": tokenizers})
            return
        texts, tokenizers = json.load(open(os.path.join(here, "golden.json")))["texts"], {}
        for name, make, options in SMALL:
            tokenizers[name] = rows(convert(spm(corpus, tmp, name, **options), make, os.path.join(here, name + ".json")), texts)
        for name, options in FILES:
            spm(corpus, tmp, name, **options)
            shutil.copy(os.path.join(tmp, name + ".model"), here)
            sp = sentencepiece.SentencePieceProcessor(model_file=os.path.join(here, name + ".model"))
            tokenizers[name + ".model"] = [pieces(sp, s) for s in texts]
        write(os.path.join(here, "golden_unigram.json"), {"tokenizers": tokenizers})


main()
