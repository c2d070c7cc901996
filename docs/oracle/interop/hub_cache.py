#!/usr/bin/env python3
"""Compares the cache of the Hub, commits, and the choice of a data set's files, with huggingface_hub and datasets, on a Hub of this machine.

    hub_cache.py [--draws N] [--seed N]

huggingface_hub finds what gpupipe fetched, without a network, and the other way round. Both read the same Hub, which shows that
internal/testing/hubserver answers as huggingface_hub expects. For drawn trees of files gpupipe fetches the files of a split that
load_dataset would read, in the same order. LAYOUTS has those of data sets on the Hub, and cards that people write: load_dataset reads
them from the server, and gpupipe has the same files or refuses the name.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys

GPUPIPE, SCRATCH = os.environ["GPUPIPE"], pathlib.Path(os.environ["SCRATCH"])
ROOT = pathlib.Path(__file__).resolve().parents[3]


def configs(*lines):
    return "---\nlicense: mit\nconfigs:\n" + "".join(f"- {line}\n" for line in lines) + "---\n# Text\n"


# Files, without contents but those of cards, and the configuration, split and revision to load.
LAYOUTS = {
    "fineweb": ({"README.md": configs("{config_name: default, default: true, data_files: [{split: train, path: data/*/*}]}",
                                      "{config_name: sample-10BT, data_files: [{split: train, path: sample/10BT/*}]}"),
                 "data/CC-MAIN-2013-20/000_00000.parquet": "", "data/CC-MAIN-2024-10/000_00000.parquet": "", "sample/10BT/000_00000.parquet": "", "plots/x.png": ""},
                [(None, "train", None), ("sample-10BT", "train", None)]),
    "c4": ({"README.md": configs("{config_name: en, data_files: [{split: train, path: en/c4-train.*.json.gz}, {split: validation, path: en/c4-validation.*.json.gz}]}",
                                 "{config_name: en.noblocklist, data_files: [{split: train, path: en.noblocklist/c4-train.*.json.gz}]}"),
            **{f"{c}/c4-{s}.{i:05}-of-00012.json.gz": "" for c in ("en", "en.noblocklist") for s in ("train", "validation") for i in range(12)}},
           [("en", "train", None), ("en", "validation", None), ("en.noblocklist", "train", None), (None, "train", None)]),
    "stories": ({"README.md": "---\nlicense: cdla-sharing-1.0\n---\n", "Stories-train.txt": "", "Stories_all.tar.gz": "", "Evaluation prompts.yaml": "",
                 **{f"data/{s}-00000-of-00001-2d5a1467fff1081b.parquet": "" for s in ("train", "validation")}}, [(None, "train", None), (None, "validation", None)]),
    "pile": ({"train/00.jsonl.zst": "", "train/01.jsonl.zst": "", "val.jsonl.zst": "", "test.jsonl.zst": ""}, [(None, "train", None), (None, "validation", None)]),
    "pajama": ({f"{s}/chunk{c}/example_{i}.jsonl.zst": "" for s in ("train", "validation") for c in (1, 2, 10) for i in (0, 10, 2)}, [(None, "train", None), (None, "validation", None)]),
    "script": ({"script.py": "", "data/train.jsonl": ""}, [(None, "train", None)]),
    "names": ({"data files/trein données 1.jsonl": "", "data files/ein % name#2?.jsonl": "", "データ/train é+&=.jsonl": ""}, [(None, "train", None)]),
    "scripts": ({f"data/{s}-00000-of-00001.parquet": "" for s in ("обучение", "тест")}, [(None, "обучение", None), (None, "train", None)]),
    "split": ({"data/train-en-00000-of-00001.parquet": "", "data/train-00000-of-00001.parquet": ""}, [(None, "train", None)]),
    "dirs": ({"README.md": configs("{config_name: en, data_dir: en}", "{config_name: de, data_dir: de, data_files: [{split: train, path: t*.jsonl}]}"),
              "en/train.jsonl": "", "en/test.jsonl": "", "de/train.jsonl": "", "de/x/t.jsonl": ""}, [("en", "train", None), ("en", "test", None), ("de", "train", None)]),
    "bom": ({"README.md": "\ufeff" + configs("{config_name: a, data_files: b.jsonl}"), "a.jsonl": "", "b.jsonl": ""}, [(None, "train", None)]),
    "crlf": ({"README.md": configs("{config_name: a, data_files: b.jsonl}").replace("\n", "\r\n"), "a.jsonl": "", "b.jsonl": ""}, [(None, "train", None)]),
    "yaml": ({".huggingface.yaml": "configs: [{config_name: default, data_files: b.jsonl}]", "README.md": configs("{config_name: x, data_files: a.jsonl}"),
              "a.jsonl": "", "b.jsonl": ""}, [(None, "train", None)]),
    "twice": ({"README.md": configs("{config_name: a, data_files: [a.jsonl, '*.jsonl']}"), "a.jsonl": "", "b.jsonl": ""}, [(None, "train", None)]),
    "same": ({"README.md": configs("{config_name: a, data_files: a.jsonl}", "{config_name: a, data_files: b.jsonl}"), "a.jsonl": "", "b.jsonl": ""}, [("a", "train", None)]),
    "defaults": ({"README.md": configs("{config_name: a, data_files: a.jsonl, default: true}", "{config_name: default, data_files: b.jsonl}"),
                  "a.jsonl": "", "b.jsonl": ""}, [(None, "train", None)]),
    "splits": ({"README.md": configs("{config_name: a, data_files: [{split: train, path: a.jsonl}, {split: train, path: b.jsonl}]}"), "a.jsonl": "", "b.jsonl": ""}, [(None, "train", None)]),
    "mixed": ({"README.md": configs("{config_name: a, data_files: [a.jsonl, {split: test, path: b.jsonl}]}"), "a.jsonl": "", "b.jsonl": ""}, [(None, "train", None)]),
    "nameless": ({"README.md": configs("{data_files: a.jsonl}"), "a.jsonl": "", "b.jsonl": ""}, [(None, "train", None)]),
    "stars": ({"README.md": configs("{config_name: a, data_files: '**.jsonl'}"), "a.jsonl": "", "x/b.jsonl": ""}, [(None, "train", None)]),
    "globs": ({"README.md": configs("{config_name: a, data_files: ['a\\\\*.jsonl', '[!a]*.jsonl', 'c[1].jsonl', 'my data/*']}"), "a\\b.jsonl": "", "a*.jsonl": "", "b.jsonl": "",
               "c1.jsonl": "", "my data/é.jsonl": ""}, [(None, "train", None)]),
    "logs": ({"x/1.eval": "", "train.jsonl": ""}, [(None, "train", None)]),
    "tasks": ({"x/task.toml": "", "x/instruction.md": "", "train.jsonl": ""}, [(None, "train", None)]),
    "revisions": ({"train.jsonl": "main"}, [(None, "train", r) for r in (None, "v1.0", "feature/a", "refs/pr/1", "refs/convert/parquet")]),
    "revisions@v1.0": ({"train.jsonl": "tag", "train_2.jsonl": ""}, []),
    "revisions@feature%2Fa": ({"a/train/1.jsonl": "branch"}, []),
    "revisions@refs%2Fpr%2F1": ({"train.jsonl": "change"}, []),
    "revisions@refs%2Fconvert%2Fparquet": ({"default/train/0000.parquet": "", "default/test/0000.parquet": ""}, []),
}


def loaded(name, config, split, revision):
    """The files that load_dataset reads for a split, or its error."""
    from datasets import load_dataset_builder
    try:
        builder = load_dataset_builder("o/" + name, config, revision=revision)
        return [f.split("@", 1)[1].split("/", 1)[1] for f in builder.config.data_files[split]]
    except Exception as e:
        return e


def serve(folder):
    """A Hub that serves a folder, and its address."""
    program = SCRATCH / "serve"
    subprocess.run(["go", "build", "-o", program, "./internal/testing/hubserver/serve"], cwd=ROOT, check=True)
    server = subprocess.Popen([program, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return server, server.stdout.readline().strip()


def write(folder, files):
    for path, content in files.items():
        path = folder / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def tree(r):
    """Names of files of a data set, as people give them."""
    words = ["train", "training", "validation", "valid", "dev", "val", "test", "testing", "eval", "notes", "a", "trainer", "strain"]
    kinds = r.sample([".jsonl", ".json", ".parquet", ".txt", ".jsonl.gz", ".csv"], r.randint(1, 2)) if r.randrange(2) else [".jsonl", ".json"]
    files = set()
    for _ in range(r.randint(1, 6)):
        kind = r.choice(kinds)
        word, style = r.choice(words), r.randrange(6)
        folder = r.choice(["", "", "data/", "en/", ".hidden/", "__pycache__/", "x/y/"])
        files.add([f"{folder}{word}{kind}", f"{folder}{word}_1{kind}", f"{folder}my-{word}-2{kind}", f"{folder}{word}/0{kind}",
                   f"data/{word}-00000-of-00001{kind}", f"{folder}{word}-set/{r.choice('abc')}{kind}"][style])
    files.update(r.sample(["README.md", "dataset_infos.json", ".gitattributes", "LICENSE", "LICENSE.txt", "metadata.csv"], r.randint(0, 3)))
    return sorted(files)


def card(r, files):
    """A card that names configurations, or None."""
    if r.random() < 0.6:
        return None
    names = [f for f in files if f.endswith((".jsonl", ".json", ".parquet", ".txt", ".csv", ".gz"))]
    names += ["none.jsonl"] * (r.randrange(4) == 0)
    pick = lambda: r.choice([r.choice(names), "**", "data/*", r.choice(names).split("/")[0] + "*", "**/" + r.choice(names).split("/")[-1]])
    form = r.randrange(3)
    data = [pick(), [pick(), pick()], [{"split": "train", "path": [pick()]}, {"split": "test", "path": pick()}]][form]
    start = r.choice(["", "", "\n \n"])
    return start + "---\n" + json.dumps({"configs": [{"config_name": r.choice(["default", "en"]), "data_files": data}]}) + "\n---\nText\n"


def expected(folder, split):
    """The files that load_dataset reads for a split; None without the split or for files that gpupipe refuses,
    ... if it reads no split of such a data set."""
    from datasets.data_files import DataFilesList, get_data_patterns, sanitize_patterns
    from datasets.load import _ALL_ALLOWED_EXTENSIONS, infer_module_for_data_files
    from datasets.packaged_modules import _MODULE_TO_EXTENSIONS
    from huggingface_hub import DatasetCard
    from datasets.utils.metadata import MetadataConfigs
    from datasets.data_files import DataFilesDict

    configs = MetadataConfigs()
    if (folder / "README.md").exists():
        configs = MetadataConfigs.from_dataset_card_data(DatasetCard.load(folder / "README.md").data)
    try:
        patterns = sanitize_patterns(next(iter(configs.values()))["data_files"]) if configs else get_data_patterns(str(folder))
        files = DataFilesDict.from_patterns(patterns, base_path=str(folder), allowed_extensions=_ALL_ALLOWED_EXTENSIONS)
        module, _ = infer_module_for_data_files(data_files=files, path="o/d")
        if module not in ("json", "parquet", "text", "arrow"):
            return None
        files = files.filter(extensions=_MODULE_TO_EXTENSIONS[module], file_names=[])
    except (FileNotFoundError, ValueError):
        return ...
    if split not in files:
        return None
    paths = [os.path.relpath(f, folder) for f in files[split]]
    if configs and len(set(paths)) < len(paths):  # load_dataset reads a file twice
        return None
    return list(dict.fromkeys(paths))


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--draws", type=int, default=120)
    a.add_argument("--seed", type=int, default=1)
    a = a.parse_args()
    r = random.Random(a.seed)
    site = SCRATCH / "site"
    model = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": r.randbytes(300_000), "README.md": b"A model.\n"}
    write(site / "models/o/m", model)
    write(site / "models/o/whole", {k: model[k] for k in ("config.json", "tokenizer.json", "model.safetensors")})
    draws = []
    for i in range(a.draws):
        files = tree(r)
        content = {f: f"{i} {f}".encode() for f in files}
        if (text := card(r, files)) is not None:
            content["README.md"] = text.encode()
        write(site / f"datasets/o/d{i}", content)
        draws.append(r.choice(["train", "train", "test", "validation"]))
    for name, (files, _) in LAYOUTS.items():
        write(site / "datasets/o" / name, {path: (text or path).encode() for path, text in files.items()})
    server, url = serve(site)
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        os.environ.pop(name, None)
    os.environ.update(HF_ENDPOINT=url, HF_HOME=str(SCRATCH / "home"), HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    import huggingface_hub
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download, try_to_load_from_cache

    def gpupipe(*args, offline=False):
        done = subprocess.run([GPUPIPE, *args], capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": str(int(offline))})
        return done.returncode, done.stdout.splitlines(), done.stderr

    # gpupipe fetches, huggingface_hub finds.
    for name in ("o/m", "o/whole"):
        code, lines, err = gpupipe("fetch", "hf:" + name)
        assert code == 0, err
        found = snapshot_download(name, local_files_only=True)
        assert os.path.realpath(found) == os.path.realpath(lines[0]), (found, lines)
        for path in ("config.json", "tokenizer.json", "model.safetensors"):
            assert pathlib.Path(hf_hub_download(name, path, local_files_only=True)).read_bytes() == model[path]
    assert not os.path.exists(os.path.join(snapshot_download("o/m", local_files_only=True), "README.md")), "only what a model needs"
    assert try_to_load_from_cache("o/m", "added_tokens.json") is huggingface_hub.file_download._CACHED_NO_EXIST
    before = {p: p.lstat().st_mtime_ns for p in (SCRATCH / "home").rglob("*/blobs/*")}
    snapshot_download("o/whole")
    assert before == {p: p.lstat().st_mtime_ns for p in (SCRATCH / "home").rglob("*/blobs/*")}, "nothing is downloaded twice"
    snapshot_download("o/m")  # adds the rest
    cached = huggingface_hub.scan_cache_dir()
    assert not cached.warnings and {x.repo_id for x in cached.repos} == {"o/m", "o/whole"}, cached

    # huggingface_hub downloads, gpupipe finds.
    shutil.rmtree(SCRATCH / "home")
    found = snapshot_download("o/m")
    code, lines, err = gpupipe("fetch", "hf:o/m", offline=True)
    assert code == 0 and os.path.realpath(lines[0]) == os.path.realpath(found), err
    shutil.rmtree(pathlib.Path(found).parents[1] / "trees", ignore_errors=True)
    code, lines, err = gpupipe("fetch", "hf:o/m", offline=True)
    assert code == 0 and os.path.realpath(lines[0]) == os.path.realpath(found), err

    # Splits.
    chosen = 0
    for i, split in enumerate(draws):
        want = expected(site / f"datasets/o/d{i}", split)
        code, lines, err = gpupipe("fetch", f"hf:datasets/o/d{i}:{split}")
        if code != 0:
            assert code == 2 and want in (None, ...), (i, split, want, err)
            continue
        got = [line.split("/snapshots/", 1)[1].split("/", 1)[1] for line in lines]
        assert want in (got, ...), (i, split, sorted(os.listdir(site / f"datasets/o/d{i}")), got, want)
        chosen += want == got

    # Layouts.
    equal = refused = 0
    for name, (_, cases) in LAYOUTS.items():
        for config, split, revision in cases:
            want = loaded(name, config, split, revision)
            text = f"hf:datasets/o/{name}" + (f"/{config}" if config else "") + (f"@{revision.replace('/', '%2F')}" if revision else "") + f":{split}"
            code, lines, err = gpupipe("fetch", text)
            got = [line.split("/snapshots/", 1)[1].split("/", 1)[1] for line in lines]
            assert code == 2 or got == want, (text, got, err, want)
            assert code == 0 or isinstance(want, Exception) or len(set(want)) < len(want), (text, err, want)
            equal, refused = equal + (code == 0), refused + (code != 0)

    # A commit of huggingface_hub, which the server takes.
    api = HfApi(endpoint=url, token="hf_test")
    api.create_repo("o/pushed")
    api.upload_folder(repo_id="o/pushed", folder_path=site / "models/o/m")
    code, lines, err = gpupipe("fetch", "hf:o/pushed")
    assert code == 0 and (pathlib.Path(lines[0]) / "model.safetensors").read_bytes() == model["model.safetensors"], err

    # A commit of gpupipe, which huggingface_hub reads.
    (SCRATCH / "text.txt").write_text("the cat sat on the mat. " * 200)
    os.environ["HF_TOKEN"] = "hf_test"
    for command in (["train", "--device", "null", "--set", "model={vocab_size: 256, d_model: 16, n_layers: 1, n_heads: 2, d_ff: 24, seq_len: 16}", "--set",
                     f"data.train=[{SCRATCH}/text.txt]", "--set", "train={steps: 4, batch_size: 2}", "--set", f"run.dir={SCRATCH}/run"],
                    ["push", f"{SCRATCH}/run", "o/mine", "--license", "mit"]):
        code, lines, err = gpupipe(*command)
        assert code == 0, err
    found = pathlib.Path(snapshot_download("o/mine", token="hf_test"))
    assert {p.name for p in found.iterdir()} >= {"README.md", "config.json", "model.safetensors", "tokenizer.json", ".gitattributes"}, list(found.iterdir())
    data = huggingface_hub.ModelCard.load(found / "README.md").data
    assert data.license == "mit" and data.library_name == "transformers" and data.tags == ["gpupipe"], data
    server.stdin.close()
    assert server.wait() == 0
    print(f"huggingface_hub {huggingface_hub.__version__}: caches read both ways; the files of {chosen} of {len(draws)} drawn splits are those of datasets, the others have none; "
          f"of {equal + refused} names of layouts {equal} have the files of load_dataset, and {refused} are refused")


if __name__ == "__main__":
    main()
