"""A site of README and docs/ as they are: `make docs`. Warnings are errors, and so are dead links and anchors."""

import re
from pathlib import Path

from sphinx.application import Sphinx

from reshard import __version__

PROJECT = Path(__file__).resolve().parents[2]
_SPECIAL = re.compile(r"`[^`]*`|[*\\]|_(?!\w)")
"""What is not plain in reStructuredText; nothing is inside of backticks."""

project = "reshard"
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
include_patterns = ["*.md", "benchmarks/*.md", "docs/*.md", "docs/*/*.md", "docs/site/*.rst"]
# other folders are not searched for pages: they are large, and hold links to each other
exclude_patterns = [
    path.name for path in PROJECT.iterdir() if path.is_dir() and path.name not in ("docs", "benchmarks")
]

myst_heading_anchors = 4
"""Anchors are those of code hosts: the same links lead to them on both."""
default_role = "literal"  # docstrings have single backticks around names
smartquotes_action = "qe"  # no dashes: two hyphens begin options
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100  # a long one has a line for each argument

html_theme = "furo"
html_title = f"reshard {release}"
html_show_sphinx = False
html_copy_source = False
html_additional_pages = {"index": "index.html"}
templates_path = ["_templates"]
html_show_copyright = False

sidebar = {
    "Tutorial": ["docs/tutorial"],
    "Guides": [
        "docs/guides/recipes",
        "docs/guides/full-size",
        "docs/guides/mindformers",
        "docs/guides/megatron",
        "docs/guides/verl-and-deepspeed",
        "docs/guides/pytorch",
        "docs/guides/huggingface",
        "docs/guides/lora",
        "docs/guides/chain-of-custody",
        "docs/guides/changes",
        "docs/guides/storage",
        "docs/guides/protected",
        "docs/guides/training",
        "docs/guides/damaged",
        "docs/guides/contents",
        "docs/guides/shell",
        "docs/guides/programs",
        "docs/guides/mindspore",
        "docs/guides/operating",
        "docs/guides/containers",
    ],
    "Reference": [
        "docs/reference/cli",
        "docs/site/api",
        "docs/reference/formats",
        "docs/reference/statements",
        "docs/reference/mindspore",
        "docs/reference/errors",
        "docs/reference/presets",
        "docs/reference/versions",
        "docs/reference/glossary",
    ],
    "Explanation": [
        "docs/explanation/conversion",
        "docs/explanation/verification",
        "docs/explanation/pitfalls",
        "benchmarks/README",
        "benchmarks/NOTES",
    ],
    "Project": ["docs/README", "CONTRIBUTING", "SECURITY", "CHANGELOG"],
}
"""The pages of the sidebar; one that is missing here is an error. On a code host docs/README.md has the same list."""


def setup(app: Sphinx) -> None:
    """Hook into the build."""
    app.add_config_value("sidebar", {}, "env")  # a change of it reads all pages again
    app.connect("source-read", _with_contents)
    app.connect("autodoc-process-docstring", _with_plain_arguments, priority=100)  # before napoleon


def _with_plain_arguments(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Keep asterisks and backslashes of the descriptions of arguments, which are those of the command's help."""
    if what == "function" and "Args:" in lines:
        begin = lines.index("Args:")
        lines[begin:] = [_SPECIAL.sub(_escaped, line) for line in lines[begin:]]


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith("`") else f"\\{found[0]}"


def _with_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Append the sidebar to the first page, whose Markdown stays plain."""
    if name == app.config.root_doc:
        source[0] += "".join(_toctree(caption, pages) for caption, pages in app.config.sidebar.items())


def _toctree(caption: str, pages: list[str]) -> str:
    listed = "\n".join(f"/{page}" for page in pages)
    return f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"
