"""Prints, as JSON, the ids of texts by mistral-common, which is installed apart: where it is, transformers reads other files.
There are two lists: special tokens that texts spell out are text, as mistral-common has it, or they are tokens.

    mistral_ids.py TEKKEN_JSON < TEXTS_JSON
"""
import json
import re
import sys

from mistral_common.tokens.tokenizers.tekken import Tekkenizer

tokenizer = Tekkenizer.from_file(sys.argv[1])
special = {tokenizer.vocab()[i]: i for i in tokenizer.special_ids}
pattern = re.compile("(" + "|".join(re.escape(s) for s in sorted(special, key=len, reverse=True)) + ")")


def encode(s):
    return tokenizer.encode(s, bos=False, eos=False)


def with_special(s):
    return [i for part in pattern.split(s) if part for i in ([special[part]] if part in special else encode(part))]


texts = json.load(sys.stdin)
print(json.dumps([[encode(s) for s in texts], [with_special(s) for s in texts]]))
