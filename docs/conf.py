"""The documentation as a site: `make docs` builds it into build/site with Sphinx and MyST, and stops at any warning.

The pages are plain Markdown that reads well where it lies. The source folder is the repository's root, so that links
between docs/ and the pages beside the code work as they are. The contents at the side are `docs/README.md`'s own lists.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONTENTS = "docs/README"

project = "sglang-dspark"
author = "the sglang-dspark authors"
copyright = f"{author}, Apache-2.0"  # noqa: A001  (Sphinx reads this name)
version = release = re.search(r'__version__ = "(.+?)"', (ROOT / "sglang_dspark" / "__init__.py").read_text()).group(1)

extensions = ["myst_parser"]
root_doc = CONTENTS
include_patterns = ["README.md", "docs/*.md", "hip/README.md", "tests/amdgcn/README.md", "benchmarks/README.md"]
exclude_patterns = ["build", ".*", "sglang_dspark", "out"]
# Headings as GitHub names them, so that a link to one works in both places; a link to none is a warning.
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"sglang-dspark {version}"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "redirect.html"}
templates_path = ["site/templates"]
html_show_sourcelink = html_copy_source = False
pygments_style, pygments_dark_style = "friendly", "monokai"


def contents(text: str) -> str:
    """A toctree for each section of the contents page, with the pages that its list links to."""
    trees = []
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        caption, _, body = section.partition("\n")
        pages = [link for link in re.findall(r"^- \[.+?\]\((.+?\.md)\)", body, flags=re.M)]
        if pages:
            trees.append("\n".join(["```{toctree}", ":hidden:", f":caption: {caption.strip()}", "", *pages, "```", ""]))
    return "\n".join(trees)


def setup(app):
    """Put the contents page's lists at the side."""

    def read(app, name: str, source: list[str]) -> None:
        if name == CONTENTS:
            source[0] += "\n" + contents(source[0])

    app.connect("source-read", read)
