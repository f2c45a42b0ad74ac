"""The site of the documentation: `sphinx-build -W -n docs build/site`.

Pages are the Markdown files of this folder, as the host of the repository shows them, too. Nothing is
fetched: fonts are the reader's, formulas are MathML, and there is no inventory of other projects.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parent), str(FOLDER / "extensions")]

from attention_conformance.suite import __version__  # noqa: E402

project = "Attention conformance"
author = "the attention conformance suite's authors"
copyright = f"2026, {author}"
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    # Of this folder.
    "deviations_page",
    "markdown_docstrings",
    "mathml",
    "repository_pages",
]
exclude_patterns = ["extensions", "findings/scripts"]
highlight_language = "text"

myst_enable_extensions = ["dollarmath", "linkify"]
myst_heading_anchors = 3

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 60

autodoc_typehints_format = "short"
maximum_signature_line_length = 80
# Types of signatures are those of other projects.
nitpick_ignore_regex = [("py:class", ".*")]

html_theme = "furo"
html_title = project
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False
html_theme_options = {"top_of_page_buttons": []}
