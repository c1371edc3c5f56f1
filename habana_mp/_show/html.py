"""HTML of what the package shows, by the templates in templates/. What is put into one is escaped: names and paths may hold anything.

Pages of a notebook are light or dark: a template for them takes its colours from the page.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from habana_mp._show import units

if TYPE_CHECKING:
    import jinja2


TEMPLATES = Path(__file__).parent.parent / "templates"


def render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(values)


def whole_page(template: str, scripts: Sequence[str] = (), **values: Any) -> str:
    """A page for the browser that needs no network, of a template that extends page.html.

    Names come from the user's code and may hold anything: jinja2 escapes them, and the page's Content-Security-Policy runs no script but
    those of the templates.
    """
    from markupsafe import Markup

    style, script = _file("report.css"), _joined(tuple(scripts))
    text = render(
        template,
        style=Markup(style),  # noqa: S704 - a file of this package
        script=Markup(script),  # noqa: S704 - files of this package
        style_hash=_hash(style),
        script_hash=_hash(script),
        **values,
    )
    # A path that is no UTF-8 has lone surrogates in it, which no file takes.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def framed(page: str) -> str:
    """A page in a frame for the cell of a notebook: neither can reach the style and the scripts of the other."""
    from markupsafe import escape

    return f'<iframe sandbox="allow-scripts" style="width: 100%; height: 40rem; border: 0" srcdoc="{escape(page)}"></iframe>'


@functools.cache
def _file(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


@functools.cache
def _joined(scripts: tuple[str, ...]) -> str:
    return "\n".join(['"use strict";', "(() => {", *(_file(f"scripts/{name}.js") for name in scripts), "})();"])


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["infinity"] = math.inf
    made.filters |= {"time": units.time, "size": units.size, "share": units.share, "short": units.short}
    return made
