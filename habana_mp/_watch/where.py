"""Where a cast happens, for the detail level of the log: the module whose forward runs and the user's line.

Called by the patched ops right under the Python frame that calls the op. It only looks at frames, and knows nothing of
casts.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

import torch

import habana_mp._core as _core
from habana_mp._ranks.rank import rank, world_size
from habana_mp._show.units import encodable
from habana_mp._torch_private import calling_frame, never_compiled

if TYPE_CHECKING:
    from types import FrameType

_CALL = torch.nn.Module.__call__.__code__
_MODULE_FILE = _CALL.co_filename
# Not the user's code; the last is what torch.fx generates.
_NOT_OF_USER = (
    os.path.dirname(torch.__file__) + os.sep,  # noqa: PTH120
    os.path.dirname(os.path.dirname(__file__)) + os.sep,  # noqa: PTH120
    "<eval_with_key>",
)


@never_compiled
def where() -> tuple[str, str]:
    """(module, source) of the caller, such as ("Net: encoder.layers.0.linear1", "/home/me/train.py:31").

    The module is the class of the outermost one in flight in this thread and the dotted path from there to the
    innermost, the shortest one where it has several names; the class alone where they are the same, "" where none is
    in flight. A module that no outer one has registered is in the path by its class: "Net: encoder.(Linear)".
    The source is the innermost line outside of torch and habana_mp, "" where all frames are theirs (a backward thread). Where there
    are several ranks, this one follows it: "/home/me/train.py:31 | rank 1".
    """
    modules: list[torch.nn.Module] = []
    frame = calling_frame()
    while frame is not None:
        module = _module_of(frame)
        if module is not None and not (modules and modules[-1] is module):
            modules.append(module)
        frame = frame.f_back
    parts = [source(), f"rank {rank()}" if world_size() > 1 else ""]
    return _path(modules[::-1]), " | ".join(filter(None, parts))


@never_compiled
def source() -> str:
    """The source alone. It reads no locals, which would keep the tensors of a user's frame alive until the frame ends."""
    frame = calling_frame()
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_NOT_OF_USER):
            return encodable(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return ""


def _module_of(frame: FrameType) -> torch.nn.Module | None:
    """The module that this frame is the call of."""
    code = frame.f_code
    if code is not _CALL:
        # A forward that was called without its module. Any other has the module's frame above it, and reading the
        # locals of a user's frame would keep its dead tensors alive until the frame ends.
        if code.co_name != "forward" or code.co_argcount == 0:
            return None
        if frame.f_back is not None and frame.f_back.f_code.co_filename == _MODULE_FILE:
            return None
    module = frame.f_locals.get(code.co_varnames[0])
    return module if isinstance(module, torch.nn.Module) else None


@never_compiled
def _path(modules: list[torch.nn.Module]) -> str:
    """The path from the first to the last; each is called within the one before."""
    if not modules:
        return ""
    paths = [""]
    for depth, module in enumerate(modules[1:], start=1):
        # Innermost first: a block may be given a module that only an outer one has registered.
        for outer in range(depth - 1, -1, -1):
            name = _name_in(modules[outer], module)
            if name:
                paths.append(_join(paths[outer], name))
                break
        else:
            paths.append(_join(paths[-1], f"({type(module).__name__})"))
    root = type(modules[0]).__name__
    return encodable(f"{root}: {paths[-1]}" if paths[-1] else root)


def _name_in(outer: torch.nn.Module, module: torch.nn.Module) -> str:
    """The path of ``module`` below ``outer``, "" where it is not there."""
    path = _names.get(outer, {}).get(id(module), "")
    try:
        is_there = outer.get_submodule(path) is module
    except AttributeError:
        is_there = False
    if not is_there:
        _names[outer] = _all_names(outer)
        path = _names[outer].get(id(module), "")
    return path


# Of the modules that something was looked for in: a list of a thousand layers is not to be gone through for each of
# them. An entry may be out of date, and is checked before it is used.
_names: weakref.WeakKeyDictionary[torch.nn.Module, dict[int, str]] = weakref.WeakKeyDictionary()


def _all_names(outer: torch.nn.Module) -> dict[int, str]:
    """Level by level, so that each module has the shortest of its paths."""
    names: dict[int, str] = {}
    level = [("", outer)]
    while level:
        below = []
        for path, parent in level:
            for name, child in parent.named_children():
                if id(child) not in names:
                    names[id(child)] = _join(path, name)
                    below.append((names[id(child)], child))
        level = below
    return names


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


_core.set_where(where, source, _path, _CALL, [*_NOT_OF_USER])
