"""The tokens that gpupipe makes of texts, for checks of tokenizers."""
import json
import os
import shutil
import struct
import subprocess
from pathlib import Path

GPUPIPE, SCRATCH = os.environ.get("GPUPIPE", "gpupipe"), Path(os.environ.get("SCRATCH", "/tmp"))


def stream(tokenizer, texts, *flags):
    """The ids of all texts, each followed by the tokenizer's end of text if it has one, and gpupipe's notes. If gpupipe
    refuses the tokenizer: None, and its message. Empty texts have no ids."""
    (SCRATCH / "texts.jsonl").write_text("".join(json.dumps({"text": s}) + "\n" for s in texts))
    shutil.rmtree(SCRATCH / "stream", ignore_errors=True)
    done = subprocess.run([GPUPIPE, "data", "--tokenizer", str(tokenizer), "--out", str(SCRATCH / "stream"), *flags, str(SCRATCH / "texts.jsonl")],
                          capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stderr
    shard = (SCRATCH / "stream" / "train_000001.bin").read_bytes()
    _, version, count = struct.unpack_from("<3i", shard)
    width = "I" if len(shard) == 1024 + 4 * count else "H"
    return list(struct.unpack_from(f"<{count}{width}", shard, 1024)), done.stderr

