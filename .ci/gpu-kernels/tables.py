#!/usr/bin/env python3
"""Makes tables of what a driver's compiler makes of the heaviest kernels of a training step: .ci/gpu-kernels.sh.

    tables.py measure FOLDER [GGML]   compiles the kernels of FOLDER/kernels.json and, if there are any, ggml's of the
                                      folder GGML by the first driver of Vulkan; writes FOLDER/table.json
    tables.py print FOLDER...         prints the tables of folders, one driver each
"""
import json
import re
import sys
from pathlib import Path

import count
import driver

HEAVIEST = 10
PRECISIONS = ("f32", "f16", "bf16")
# What a card such as an RX 7900 XTX does in a second, to order kernels by the time that they take at least.
FLOPS, BYTES = {"f32": 40e12, "f16": 100e12, "bf16": 100e12}, 900e9
# ggml's tiles for large products, as its constants: invocations, rows, columns, k's, those of a subgroup, iterations, those
# of an invocation or of a matrix, subgroup size. f16 with matrices: coopmat.
GGML = {
    "RADV": {"plain": (128, 64, 64, 16, 64, 32, 2, 4, 2, 1, 64), "matrices": (256, 128, 128, 16, 64, 64, 2, 16, 16, 16, 64)},
    "Intel": {"plain": (128, 64, 64, 16, 32, 32, 2, 4, 2, 1, 32), "matrices": (512, 128, 128, 16, 32, 32, 2, 8, 16, 16, 32)},
    "NVK": {"plain": (128, 128, 128, 16, 64, 64, 2, 4, 4, 1, 32)},
}
NVIDIA_WARPS, NVIDIA_REGISTERS = 48, 65536  # of a multiprocessor of the Ada generation


def registers(e, invocations):
    """Registers of an invocation, waves that run at once, and registers that were spilled."""
    s = e.statistics
    if "VGPRs" in s:  # of 16 waves
        return s["VGPRs"], s["Subgroups per SIMD"], s["Spilled VGPRs"]
    if "Max live registers" in s:  # of 32 bytes; 128 of 64 bytes are there, or 256 for half as many threads
        return s["Max live registers"], None, s["Spill Count"]
    used = -(-s["Number of GPRs"] // 8) * 8
    warps = -(-invocations // 32)
    groups = min(NVIDIA_WARPS // warps, NVIDIA_REGISTERS // (used * 32 * warps))  # if shared memory suffices
    return s["Number of GPRs"], groups * warps, s["SLM Size"] // 4


def cell(e, invocations=0):
    loop = count.inner_loop(e)
    if loop is None:
        return None
    used, waves, spilled = registers(e, invocations)
    text = f"{100 * loop.share:.3g} %, {used}" + (f" × {waves}" if waves else "") + f", {loop.shared_per_product:.2f}"
    return {"products": loop.products, "text": text + (f", {spilled} spilled" if spilled else "")}


def seconds(k):
    return k["count"] * max(k["flops"] / FLOPS[k["precision"]], k["bytes"] / BYTES)


def name(k):
    label = re.sub(r"layers\.\d+", "layer", k["label"])
    label = re.sub(r"(?<=: )(\S+( \S+){3}) .*", r"\1 …", label)
    return f"{label} {' · '.join(k['shapes'])}"


def measure_kernel(d, folder, k):
    """The cell of the pass that multiplies most."""
    cells = []
    for file in k["passes"]:
        code = (folder / file).read_bytes()
        size = k["subgroup"] if driver.needs_subgroups(code) else 0
        cells += [cell(e, driver.invocations(code)) for e in d.compile(code, trusted=".checked" not in file, subgroup=size)]
    best = max(filter(None, cells), key=lambda c: c["products"], default={"text": "no products"})
    return f"{k['candidate'].split('/')[0].replace(' ', ' ')}: {best['text']}"


def measure(folder, ggml):
    d = driver.Driver()
    out = {"device": d.name, "kernels": {}, "ggml": {}}
    kernels = json.loads((folder / "kernels.json").read_text())
    for p in PRECISIONS:
        heaviest = sorted((k for k in kernels if k["precision"] == p), key=seconds, reverse=True)
        total = sum(map(seconds, heaviest))
        for k in heaviest[:2 * HEAVIEST]:  # other drivers may have another order
            out["kernels"][f"{p} {name(k)}"] = {"count": k["count"], "share": seconds(k) / total, "text": measure_kernel(d, folder, k)}
    tiles = next(v for k, v in GGML.items() if k in d.name)
    for file in sorted(ggml.glob("*.spv")) if ggml else ():
        kind = "matrices" if file.stem.endswith("matrices") else "plain"
        if tile := tiles.get(kind):
            size = tile[-1] if kind == "matrices" else 0
            executable = d.compile(file.read_bytes(), subgroup=size, constants=[*enumerate(tile), (11, 1)], push=64)[0]
            out["ggml"][file.stem] = f"{tile[1]}x{tile[2]}: {cell(executable, tile[0])['text']}"
    (folder / "table.json").write_text(json.dumps(out, indent="\t"))


def show(folders):
    tables = [json.loads((folder / "table.json").read_text()) for folder in folders]
    head = " | ".join(t["device"] for t in tables)
    for p in PRECISIONS:
        print(f"\n| {p}: kernel of smollm2-135m's step | of it | {head} |\n| --- | --- |{' --- |' * len(tables)}")
        rows = [k for k in tables[0]["kernels"] if k.startswith(p + " ")][:HEAVIEST]
        for k in rows:
            first = tables[0]["kernels"][k]
            cells = [t["kernels"].get(k, {"text": ""})["text"] for t in tables]
            print(f"| {first['count']} × {k.removeprefix(p + ' ')} | {100 * first['share']:.1f} % | {' | '.join(cells)} |")
        for g in sorted({g for t in tables for g in t["ggml"] if g.split("-")[0] == p}):
            print(f"| ggml, {g} | | {' | '.join(t['ggml'].get(g, '') for t in tables)} |")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["measure", folder, *ggml]:
            measure(Path(folder), Path(ggml[0]) if ggml else None)
        case ["print", *folders] if folders:
            show([Path(f) for f in folders])
        case _:
            sys.exit(__doc__)
