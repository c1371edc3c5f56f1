"""``record``: what a block of a program computes, in a file that another run is compared with."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

import habana_mp._core as _core
from habana_mp._evidence.looking import check_nothing_runs, log_probabilities_of, looking, numbers_of
from habana_mp._evidence.recordings.about import about, policy_here
from habana_mp._evidence.recordings.file import SUFFIX, Kept, is_recording, save
from habana_mp._policy.policy import Policy

if TYPE_CHECKING:
    from typing_extensions import Self

_MOST_TOKENS = 1_000_000


class Recording:
    """A block that ``record`` records.

    Example:
        >>> with hmp.record("a.rec") as run:
        ...     run.returns({"logits": model(x)})

    See Also:
        record
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._returned: Any = None
        self._looking = ExitStack()
        self._policy: Policy | None = None

    def returns(self, values: Any) -> None:
        """Set the values to compare at the end, such as logits: tensors and numbers, also in lists, tuples and dicts. The last call counts.

        ``{"log_probabilities": tensor}`` keeps all numbers of this tensor, the natural logarithm of the probability of each token
        (floating, any shape), for ``Comparison.log_probabilities``.

        Raises:
            TypeError: the log-probabilities are no floating tensor.
            ValueError: they are of more than 1,000,000 tokens.
        """
        found = log_probabilities_of(values)
        if found is not None and found.numel() > _MOST_TOKENS:
            raise ValueError(
                f"log_probabilities has {found.numel():,} tokens. A recording keeps at most {_MOST_TOKENS:,}"
            )
        self._returned = values

    def __enter__(self) -> Self:
        check_nothing_runs("record")
        self._policy = policy_here()
        self._looking.enter_context(looking(lambda: _core.start_recording(by_compare=False)))
        return self

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._looking:
            run = None if error is not None else _core.stop_recording(numbers_of(self._returned))
        if run is not None:
            save(Kept(run, kept_log_probabilities(self._returned), about(self._policy)), self._path)


def record(path: str | os.PathLike[str]) -> Recording:
    """Record what a block computes, in a file for ``compare`` and ``assert_same``.

    The file has, for each call of an op on this thread and in its backward passes: the module, the phase, dtypes and shapes, a hash of
    all numbers, a sample of up to 2,048 of them, and their norm; then the losses, the gradients, the values given to ``returns``, the
    policy, the machine, the number of threads, and the versions of torch and habana_mp. It has at most 20 MB. Of a longer run there are fewer samples, then fewer calls.
    It has no code, and loading it runs none. It has numbers of weights and inputs only as results of ops.

    Args:
        path: the file, whose name ends in ``.rec``. It is written at the end of the block, and not if the block raises.

    Raises:
        ValueError: the name does not end in ``.rec``.
        OSError: the folder does not exist, or the file cannot be written.
        RuntimeError: another recording, comparison or search is running, or a report measures values.

    Example:
        >>> model = model.eval()  # dropout would draw other numbers
        >>> with hmp.record("a.rec") as run:
        ...     run.returns(model(x))
        >>> hmp.compare(lambda: model(x), "a.rec").same
        True

    See Also:
        compare, assert_same
    """
    if not is_recording(path):
        raise ValueError(f"{os.fspath(path)!r}: the name of a recording ends in {SUFFIX}, such as step{SUFFIX}")
    folder = Path(path).parent
    if not folder.is_dir():
        raise FileNotFoundError(2, "No such folder", os.fspath(folder))
    return Recording(Path(path).absolute())


def kept_log_probabilities(returned: Any) -> torch.Tensor | None:
    """Those in what a step returned, as a recording keeps them."""
    found = log_probabilities_of(returned)
    return None if found is None else _core.copied_unseen(found).reshape(-1).to("cpu", torch.float32)
