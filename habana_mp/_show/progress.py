"""A bar on stderr while something long runs, with the time that is left."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack

from habana_mp._show.stream import is_terminal, say


class Bar(ExitStack):
    """Begins with ``start``, when it is known how many steps there are. Where stderr is no terminal it prints the line ``text`` alone."""

    def __init__(self, *, shown: bool = True) -> None:
        super().__init__()
        self._shown = shown
        self._advance: Callable[[], None] = lambda: None

    def start(self, text: str = "", *, total: int, done: int = 0) -> None:
        if not self._shown:
            return
        if text:
            say(text, err=True)
        if not is_terminal(sys.stderr):
            return
        from rich.console import Console
        from rich.progress import Progress

        bar = Progress(console=Console(stderr=True, highlight=False), transient=True)
        self.enter_context(bar)
        task = bar.add_task("measuring", total=total, completed=done)
        self._advance = lambda: bar.advance(task)

    def advance(self) -> None:
        self._advance()
