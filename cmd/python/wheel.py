#!/usr/bin/env python3
"""Makes a wheel of this package with the program inside: wheel.py --program FILE --platform TAG --version V --out FOLDER

It needs nothing but Python. The same inputs give the same bytes.
"""
import argparse
import base64
import hashlib
import os
import pathlib
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 30 << 20  # bytes of a wheel

METADATA = """Metadata-Version: 2.1
Name: gpupipe
Version: {version}
Summary: Trains transformer language models on GPUs and CPUs
Home-page: https://github.com/gpupipe/gpupipe
License: Apache-2.0
Requires-Python: >=3.8
Provides-Extra: pandas
Requires-Dist: pandas; extra == "pandas"
Description-Content-Type: text/markdown

{readme}"""


def wheel(program, platform, version, out):
    """Writes a wheel and returns its path."""
    info = f"gpupipe-{version}.dist-info"
    name = "gpupipe.exe" if platform.startswith("win") else "gpupipe"
    files = {f"gpupipe/{p.name}": p.read_bytes() for p in sorted((HERE / "gpupipe").iterdir()) if p.suffix in (".py", ".typed")}
    files[f"gpupipe/bin/{name}"] = pathlib.Path(program).read_bytes()
    for p in ("LICENSE", "NOTICE"):
        files[f"{info}/licenses/{p}"] = (HERE.parents[1] / p).read_bytes()
    files[f"{info}/METADATA"] = METADATA.format(version=version, readme=(HERE / "README.md").read_text(encoding="utf-8")).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: gpupipe\nRoot-Is-Purelib: false\nTag: py3-none-{platform}\n".encode()
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\ngpupipe = gpupipe._program:main\n"
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    path = pathlib.Path(out) / f"gpupipe-{version}-py3-none-{platform}.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if "/bin/" in name else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(entry, content)
    if path.stat().st_size > LIMIT:
        raise SystemExit(f"{path}: {path.stat().st_size} bytes, expected at most {LIMIT}")
    return path


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("program", "platform", "version", "out"):
        a.add_argument("--" + flag, required=True)
    a = a.parse_args()
    path = wheel(a.program, a.platform, a.version, a.out)
    print(f"{path}: {os.path.getsize(path) / (1 << 20):.1f} MiB")


if __name__ == "__main__":
    main()
