"""HTML of what the package shows, by the templates in templates/. What is put into one is escaped: names and paths may hold anything.

Pages of a notebook are light or dark: a template for them takes its colours from the page.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2


def render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(values)


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
