"""Run by MkDocs on each page that it builds: the site must not need a network."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.exceptions import PluginError

_FETCHED = re.compile(r"""<(?:script|img|iframe)\b[^>]*\bsrc="https?:[^>]*>|<link\b[^>]*\bhref="https?:[^>]*>""")
#: what the theme draws with a program that it fetches
_DRAWN = '<pre class="mermaid">'


def on_post_page(output: str, page: Any, config: Any) -> str:  # noqa: ARG001  MkDocs' signature
    """The page as it is. Raises `PluginError` where a browser would fetch something from another host."""
    found = _FETCHED.findall(output) + [_DRAWN] * (_DRAWN in output)
    if found:
        raise PluginError(f"{page.file.src_uri} needs a network: {found[0]}")
    return output
