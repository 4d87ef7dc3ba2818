"""What MkDocs does to each page of the site when it has made HTML of it; see ``mkdocs.yml``.

It runs in the environment of ``make docs``, which has no kafkalog.
"""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["on_page_content"]

_ROLE: Final = re.compile(r":[a-z]+:<code>[~.]*(?:[\w.]*\.)?(\w+)</code>")
_HIDDEN: Final = re.compile(
    r'(<span class="p">\(</span>)<span class="n">_\w+</span><span class="p">,</span> ?'
)
"""A first parameter that a decorator gives, as to ``append``."""
_LITERAL: Final = re.compile(r"<p>::</p>\n?")
_CODE: Final = re.compile(r"(?<!<pre>)(?<!</span>)<code>[^<]+</code>")
_FLAG: Final = re.compile(r"(?<![\w-])--?\w[\w-]*")


def on_page_content(html: str, **_: Any) -> str:  # noqa: ANN401 - classes of MkDocs
    """Show what docstrings have for another tool as it is meant, and keep each option on one line.

    A browser breaks lines after a hyphen, so that ``--follow`` would be ``-`` and ``-follow``.
    """
    html = _LITERAL.sub("", _ROLE.sub(r"<code>\1</code>", _HIDDEN.sub(r"\1", html)))
    return _CODE.sub(lambda code: _FLAG.sub(r'<span class="word">\g<0></span>', code[0]), html)
