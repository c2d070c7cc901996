"""Writes the folder files and golden_files.json: small vocab.json with merges.txt and tekken.json as transformers reads them.

Development-time only. Needs transformers 5.23.0 and tokenizers 0.23.3, and gpt2-style.json of this folder.
"""
import base64, json, os, random, shutil

from tokenizers import Tokenizer
from transformers import GPT2Tokenizer, Qwen2Tokenizer, RobertaTokenizer
from transformers.integrations.mistral.tokenizer import convert_tekken_tokenizer

here = os.path.dirname(os.path.abspath(__file__))
texts = json.load(open(here + "/golden.json"))["texts"]
model = json.load(open(here + "/gpt2-style.json"))["model"]
bytes_of = {}
n = 0
for b in range(256):
    keep = 33 <= b <= 126 or 161 <= b <= 172 or b >= 174
    bytes_of[chr(b) if keep else chr(256 + n)] = b
    n += not keep
golden = {"Texts": texts, "Tokenizers": {}}


def folder(name):
    path = os.path.join(here, "files", name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


def rows(name, t):
    golden["Tokenizers"][name] = [{"IDs": t(s, add_special_tokens=False)["input_ids"]} for s in texts]


for name, cls, extra in (("gpt2", GPT2Tokenizer, {}), ("gpt2-space", GPT2Tokenizer, {"add_prefix_space": True}), ("roberta", RobertaTokenizer, {}),
                         ("qwen2", Qwen2Tokenizer, {})):
    path = folder(name)
    vocab = {k: v for k, v in model["vocab"].items() if k != "<|endoftext|>"}
    tokens = {"roberta": ["<s>", "</s>", "<unk>", "<pad>", "<mask>"]}.get(name, ["<|endoftext|>"])
    vocab = {s: i for i, s in enumerate(tokens + sorted(vocab, key=vocab.get))}
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    json.dump(vocab, open(path + "/vocab.json", "w"), ensure_ascii=False)
    open(path + "/merges.txt", "w").write("#version: 0.2\n" + "\n".join(merges) + "\n")
    json.dump({"tokenizer_class": cls.__name__, **extra}, open(path + "/tokenizer_config.json", "w"))
    rows("files/" + name, cls.from_pretrained(path))

r = random.Random(1)
ranks = [bytes([b]) for b in range(256)]
for s in model["vocab"]:
    token = bytes(bytes_of[c] for c in s) if all(c in bytes_of for c in s) else b""
    if len(token) > 1 and token not in ranks:
        ranks.append(token)
pattern = json.load(open(here + "/llama3-style.json"))["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"]
path = folder("tekken")
json.dump({"config": {"pattern": pattern, "num_vocab_tokens": len(ranks), "default_vocab_size": len(ranks) + 10 - 5, "default_num_special_tokens": 10, "version": "v13"},
           "vocab": [{"rank": i, "token_bytes": base64.b64encode(b).decode(), "token_str": None} for i, b in enumerate(ranks)],
           "special_tokens": [{"rank": i, "token_str": s, "is_control": True} for i, s in enumerate(special)]}, open(path + "/tekken.json", "w"))
rows("files/tekken", convert_tekken_tokenizer(path + "/tekken.json"))
json.dump(golden, open(here + "/golden_files.json", "w"), ensure_ascii=True)

# golden_tiktoken.json: the same ranks with the split pattern of each published encoding, by tiktoken 0.14.0. The patterns of
# Qwen, Kimi and Llama 3 are those of the models' own code.
import tiktoken, tiktoken_ext.openai_public as public, unicodedata

gpt4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
words = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]%s[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]%s(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
kimi = [r"[\p{Han}]+", words % ("*", "+"), words % ("+", "*"), r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]
public.load_tiktoken_bpe = lambda *a, **k: {}
patterns = {name: getattr(public, name)()["pat_str"] for name in ("r50k_base", "p50k_base", "cl100k_base", "o200k_base")}
patterns.update({"Qwen": gpt4 % "", "Kimi": "|".join(kimi), "Llama 3": gpt4 % "{1,3}"})
texts = ["", "Hello WORLD don't I'LL we'Re 'ſ HelloWorld camelCase XMLHttp", "a\r\nb\r\n\r\n  c \t\n\n d", "1 12 123 1234567 ½ Ⅷ ४५", "x=1;//\r\n\ty /path/to\n",
         "中文字abc漢字、Kimi你好吗", "ひらがなカタカナ ｶﾞ", "한국어 문장", "नमस्ते दुनिया", "தமிழ் மொழி", "العربية لُغَةٌ", "עברית שָׁלוֹם", "Привет мир", "Ελληνικά", "ไทยภาษา", "ქართული",
         "e\u0301 A\u030a", "👩\u200d👩 🇩🇪", "  trailing   ", "\n\n\n", "don't  stop\u00a0now\u3000x"]
tokens = {t: i for i, t in enumerate(ranks)}
rows = {}
for name, pattern in patterns.items():
    e = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=tokens, special_tokens={})
    rows[name] = [e.encode(unicodedata.normalize("NFC", s) if name == "Qwen" else s) for s in texts]
json.dump({"ranks": [base64.b64encode(t).decode() for t in ranks], "texts": texts, "ids": rows}, open(here + "/golden_tiktoken.json", "w"))
