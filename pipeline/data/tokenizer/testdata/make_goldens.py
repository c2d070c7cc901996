"""Trains the small tokenizers of this folder and writes golden.json.

Development-time only. Needs the Python package `tokenizers` (0.23.3 wrote what is committed) and,
as text, the King James Bible (Debian: `bible -f gen1:1-rev22:21 > kjv.txt`) and Go's own sources.
Usage: python make_goldens.py kjv.txt "$(go env GOROOT)/src"
"""
import glob, json, os, random, sys
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

here = os.path.dirname(os.path.abspath(__file__))
kjv = open(sys.argv[1], encoding="utf8", errors="ignore").read()
go = "".join(open(f, encoding="utf8", errors="ignore").read() for f in sorted(glob.glob(sys.argv[2] + "/strconv/*.go")))
accents = "Ça va très bien, l'été à Zürich; naïve façade. Привет, мир! 你好，世界。 こんにちは "
corpus = [kjv[:1_500_000], go[:300_000], accents * 50]

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = pre_tokenizers.ByteLevel.alphabet()
FALLBACK = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]


def lines(docs):
    for d in docs:
        yield from d.splitlines(keepends=True)


def save(tok, name, edit=lambda j: None):
    j = json.loads(tok.to_str())
    edit(j)
    path = os.path.join(here, name + ".json")
    with open(path, "w", encoding="utf8") as f:
        json.dump(j, f, ensure_ascii=False, separators=(",", ":"))
    return Tokenizer.from_file(path)


def gpt2():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(lines(corpus), trainers.BpeTrainer(vocab_size=600, initial_alphabet=BYTES, special_tokens=["<|endoftext|>"], show_progress=False))
    t.add_tokens([AddedToken("<|tool|>", lstrip=True, rstrip=True), AddedToken("zebra", single_word=True)])

    def strings(j):  # the older way to write merges
        j["model"]["merges"] = [" ".join(m) for m in j["model"]["merges"]]

    return save(t, "gpt2-style", strings)


def llama3():
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(lines(corpus), trainers.BpeTrainer(vocab_size=600, initial_alphabet=BYTES, show_progress=False))
    t.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    t.post_processor = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))])

    def unmerge(j):  # a word that only ignore_merges can reach
        m = j["model"]
        drop = [x for x in m["merges"] if "".join(x) in ("Ġthe", "Ġand")]
        m["merges"] = [x for x in m["merges"] if x not in drop]
        made = {"".join(x) for x in m["merges"]} | set(BYTES)
        m["merges"] = [x for x in m["merges"] if all(p in made for p in x)]

    return save(t, "llama3-style", unmerge)


def smollm2():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(lines(corpus), trainers.BpeTrainer(vocab_size=600, initial_alphabet=BYTES, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], show_progress=False))
    return save(t, "smollm2-style")


def llama2():
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never", split=True)  # to train in reasonable time
    t.train_from_iterator(lines(corpus[:2]), trainers.BpeTrainer(vocab_size=800, special_tokens=FALLBACK, limit_alphabet=80, show_progress=False))
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])

    def finish(j):
        j["pre_tokenizer"] = None
        j["added_tokens"] = [a for a in j["added_tokens"] if a["id"] < 3]

    return save(t, "llama2-style", finish)


def metaspace():
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=True)
    t.train_from_iterator(lines(corpus[:2]), trainers.BpeTrainer(vocab_size=700, special_tokens=FALLBACK, limit_alphabet=80, show_progress=False))
    t.decoder = decoders.Sequence([decoders.Metaspace("▁", "first", True), decoders.ByteFallback(), decoders.Fuse()])

    def finish(j):
        j["added_tokens"] = [a for a in j["added_tokens"] if a["id"] < 3]

    return save(t, "metaspace-style", finish)


def clip():
    t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    t.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")])
    t.train_from_iterator(lines(corpus), trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", "<eos>"], end_of_word_suffix="</w>", limit_alphabet=90, show_progress=False))
    t.decoder = decoders.BPEDecoder("</w>")
    return save(t, "suffix-style")


def texts():
    rng = random.Random(1)
    out = [
        "", " ", "  ", "\n", "a", "Hello, world!", "Hello  world   and\n\n\nmore\t\ttabs \n ends ", "In the beginning God created the heaven and the earth.",
        "I'll we've they're HE'S DON'T 'tis l'été", "12345 3.14159 1,000,000 ٣٤٥ Ⅷ ½", "func (x *T) Do() error {\n\treturn nil // done\n}\n",
        accents, "e\u0301 vs é, ﬁ, Å Å", "emoji 👩‍👩‍👧‍👦 and 🇨🇭 flags 😀😀", "trailing space ", " leading space", "\u00a0nbsp\u00a0 \u3000wide\u2003em", "a\u0000b\u0001c\u007f",
        "x<|endoftext|>y<|endoftext|><|endoftext|>", "<s> bos </s> eos<unk>", "zebra zebras a zebra.  <|tool|>  zebra<|tool|>x", "<|begin_of_text|>hi <|end_of_text|> there", "<|im_start|>user\nhi<|im_end|>",
        "▁already ▁▁ there", "the the the and and", "\r\nwindows\r\nlines\r\n\r\n", "ſtreet 'ſ 'S", "ab" * 200, "a" * 300, "=" * 130 + "\n" + " " * 90 + "x", "<0x41> <0x0A>", "日本語テキスト한국어", "\ufeffbom", "\u2028line sep\u0085next",
    ]
    for src in (kjv, go):
        for _ in range(12):
            i = rng.randrange(len(src) - 400)
            out.append(src[i : i + rng.randrange(1, 400)])
    pool = "abcXYZ 019 \n\t'.,-_éñß中👍\u0301\u200d  sтд"
    for _ in range(30):
        out.append("".join(rng.choice(pool) for _ in range(rng.randrange(1, 40))))
    return out


golden = {"texts": texts(), "tokenizers": {}}
for make in (gpt2, llama3, smollm2, llama2, metaspace, clip):
    t = make()
    rows = []
    for s in golden["texts"]:
        ids = t.encode(s, add_special_tokens=False).ids
        rows.append({"ids": ids, "text": t.decode(ids, skip_special_tokens=False)})
    name = make.__name__ if make is not clip else "suffix"
    golden["tokenizers"][name + "-style"] = rows
for name, rows in golden["tokenizers"].items():  # a decoded text is kept only where it differs from the input
    for s, r in zip(golden["texts"], rows):
        if r["text"] == s:
            del r["text"]
with open(os.path.join(here, "golden.json"), "w", encoding="utf8") as f:
    json.dump(golden, f, ensure_ascii=True, separators=(",", ":"))
