"""Run by Python as it starts, in the processes that a script for Gaudi starts: they find Habana's names. Nothing is imported until they are asked for."""  # noqa: INP001

import contextlib
import os
import sys


class _Finder:
    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG004 - Python's arguments
        # It appends a finder of its own to those that are asked; a process of another environment has none.
        if fullname in ("habana_dataloader", "habana_frameworks", "hmp") and "habana_mp.gaudi" not in sys.modules:
            with contextlib.suppress(ModuleNotFoundError):
                import habana_mp.gaudi  # noqa: F401


sys.meta_path.append(_Finder)

# The environment's own, before which this one was found.
_this = sys.modules.pop(__name__)
sys.path[:] = [path for path in sys.path if path != os.path.dirname(__file__)]  # noqa: PTH120
try:
    import sitecustomize  # type: ignore[import-not-found] # noqa: F401
except ModuleNotFoundError as error:
    if error.name != __name__:
        raise
finally:
    sys.modules.setdefault(__name__, _this)
