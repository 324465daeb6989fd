"""For the site: links to files of the repository, which are no pages, become what they are called.

mkdocs calls `on_page_markdown` for each page (mkdocs.yml). On a code host the same links lead to the files.
"""

import re
from typing import Any

LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>(?:\.\./)+[^)\s]*|design/(?:decisions|spikes)/)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """A page of the site stays a link; `../examples/x.py` is shown as its name."""
    inside = page.file.src_uri.count("/")

    def shown(match: re.Match[str]) -> str:
        target = match["target"]
        leaves = (
            target.count("../") > inside or target.endswith("/") or "spikes/" in target
        )  # not in the site
        return match["text"] if leaves else match[0]

    return LINK.sub(shown, markdown)
