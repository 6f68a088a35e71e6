"""A site of README and docs/ as they are: `make docs`. Warnings are errors, and so are dead links and anchors."""

from pathlib import Path

from sphinx.application import Sphinx

from reshard import __version__

PROJECT = Path(__file__).resolve().parents[2]

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
autodoc_typehints = "signature"
python_use_unqualified_type_names = True

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
        "docs/guides/mindformers",
        "docs/guides/megatron",
        "docs/guides/verl-and-deepspeed",
        "docs/guides/pytorch",
        "docs/guides/huggingface",
        "docs/guides/changes",
        "docs/guides/storage",
        "docs/guides/protected",
        "docs/guides/training",
        "docs/guides/damaged",
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
    "Project": ["docs/README", "CONTRIBUTING", "CHANGELOG"],
}
"""The pages of the sidebar; one that is missing here is an error. On a code host docs/README.md has the same list."""


def setup(app: Sphinx) -> None:
    """Hook into the build."""
    app.add_config_value("sidebar", {}, "env")  # a change of it reads all pages again
    app.connect("source-read", _with_contents)


def _with_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Append the sidebar to the first page, whose Markdown stays plain."""
    if name == app.config.root_doc:
        source[0] += "".join(_toctree(caption, pages) for caption, pages in app.config.sidebar.items())


def _toctree(caption: str, pages: list[str]) -> str:
    listed = "\n".join(f"/{page}" for page in pages)
    return f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"
