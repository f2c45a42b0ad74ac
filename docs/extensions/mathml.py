"""Formulas: LaTeX becomes MathML as the site is built. Browsers draw it without a script."""

from __future__ import annotations

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

LOGGER = logging.getLogger(__name__)

BAR = re.compile(r"<mo( [^>]*)?>&#x0007C;</mo>")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _mathml(node: nodes.math | nodes.math_block, display: str) -> str:
    formula = convert(node.astext(), display=display)
    # What the converter does not know stays as it is.
    if re.search(r">(&|\\[^<]*)</m", formula):
        LOGGER.warning("a formula that cannot be converted: %s", node.astext(), location=node)
    return BAR.sub(r'<mo\1 lspace="0" rspace="0">&#x0007C;</mo>', formula)


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(_mathml(node, "inline"))
    raise nodes.SkipNode


def _block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{_mathml(node, "block")}</div>')
    raise nodes.SkipNode
