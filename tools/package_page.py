"""README.md as the package index shows it: metadata of the package come from here (pyproject.toml). Knows the standard library alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")


class Readme:
    """The provider of ``readme``. ``base``, if it is set, is the address that links into the repository are relative to."""

    def dynamic_metadata(self, settings: Mapping[str, Any], _project: Mapping[str, Any]) -> dict[str, dict[str, str]]:
        text = without_relative_links(Path("README.md").read_text(encoding="utf-8"), settings.get("base"))
        return {"readme": {"text": text, "content-type": "text/markdown"}}


def without_relative_links(text: str, base: str | None) -> str:
    """Links to files of the repository made absolute; without a base only their text is left, and no picture."""
    if base:
        return _LINK.sub(rf"\1[\2]({base}\3)", text)
    return _LINK.sub(lambda link: "" if link[1] else link[2], text)
