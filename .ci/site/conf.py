"""The documentation as a site, for Sphinx: make site. The pages are README.md and docs/*.md."""

import pathlib
import posixpath
import re
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPOSITORY = "https://github.com/gpupipe/gpupipe/blob/main/"
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")

project = "gpupipe"
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
root_doc = "README"
include_patterns = ["README.md", "docs/*.md"]
html_theme = "furo"
html_title = "gpupipe"
html_copy_source = False
html_theme_options = {"source_repository": "https://github.com/gpupipe/gpupipe/", "source_branch": "main", "source_directory": ""}
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]


def pages(app):
    """All pages, in the order in which README.md links to them."""
    linked = re.findall(r"\]\((docs/[A-Z-]+\.md)\)", (ROOT / "README.md").read_text())
    return list(dict.fromkeys(linked + sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))))


def source_read(app, page, source):
    """Lets links to what is no page lead to the repository, and gives the first page its menu."""
    folder = posixpath.dirname(page)

    def link(found):
        before, target, after = found.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        if path != "README.md" and path not in pages(app) and not path.endswith(".png") and (ROOT / path).exists():
            target = REPOSITORY + path
        return before + target + after

    source[0] = LINK.sub(link, source[0])
    if page == root_doc:
        source[0] += "\n```{toctree}\n:hidden:\n" + "\n".join(p.removesuffix(".md") for p in pages(app)) + "\n```\n"


def copy_markdown(app, error):
    """Puts each page beside its HTML as it was written."""
    for page in ["README.md", *pages(app)]:
        shutil.copy(ROOT / page, pathlib.Path(app.outdir) / page)
    shutil.copy(pathlib.Path(app.outdir) / "README.html", pathlib.Path(app.outdir) / "index.html")


def setup(app):
    app.connect("source-read", source_read)
    app.connect("build-finished", copy_markdown)
