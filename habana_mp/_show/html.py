"""HTML of what the package shows, by the templates in templates/. What is put into one is escaped: names and paths may hold anything.

Pages of a notebook are light or dark: a template for them takes its colours from the page.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from habana_mp._show import units

if TYPE_CHECKING:
    import jinja2


TEMPLATES = Path(__file__).parent.parent / "templates"


def render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(values)


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
    made.filters |= {"time": units.time, "size": units.size, "share": units.share, "short": units.short}
    return made
