"""Whether something holds a tensor for longer than a call of another thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

# Torch holds what a call gets until the call is over, on any thread. Between these seconds, calls of other threads let go.
_LOOKS = (0.001, 0.002, 0.004, 0.008, 0.016)


def look_again(found: Callable[[], bool]) -> bool:
    """Whether ``found()`` is true each time."""
    for seconds in _LOOKS:
        if not found():
            return False
        time.sleep(seconds)
    return found()
