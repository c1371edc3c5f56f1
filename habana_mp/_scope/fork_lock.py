"""Locks of Python that a forked process never inherits from a thread that it does not have. Those of C++: src/base/fork_safe_mutex.h."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def fork_lock() -> AbstractContextManager[object]:
    """A lock that ``os.fork`` waits for, so that the child finds whole what it guards. The thread that holds it may take it again, and fork.

    A fork takes the locks in the reverse order of their making. So a thread may take one under another that was made after it: the
    modules that import others hold theirs while they call them.
    """
    lock = threading.RLock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock
