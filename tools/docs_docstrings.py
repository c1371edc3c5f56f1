"""Docstrings as Markdown, for docs/api.md: they are written to be read in help(), mkdocstrings takes them for Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

_SEE_ALSO = re.compile(r"^See Also:\n +(.+)$", re.MULTILINE)
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)


class Docstrings(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """The names that habana_mp/hmp.py imports at their first use, which `import *` does not show to griffe."""
        for name, member in pkg["hmp"].members.items():
            if member.is_alias and name in pkg["hmp"].exports and name not in pkg.members:
                pkg.set_member(name, griffe.Alias(name, member.target_path, parent=pkg))

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    text = _EXAMPLE.sub("Examples:", text)  # the section that mkdocstrings shows as code
    text = _SEE_ALSO.sub(
        lambda found: "See also " + re.sub(r"\w+", r"[`\g<0>`][habana_mp.\g<0>]", found[1]) + ".", text
    )
    return re.sub(r'"([\w.]*__\w+__)"', r'"`\1`"', text)
