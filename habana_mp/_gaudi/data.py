"""`habana_dataloader`: Habana's data loader, which is torch's here."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from habana_mp._gaudi.absent import absent

__all__ = ["HabanaDataLoader", "ImageFolderWithManifest"]


class HabanaDataLoader(DataLoader[Any]):
    """``torch.utils.data.DataLoader``, with its arguments.

    A class of its own: scripts put methods into it.
    """


# Scripts ask isinstance for it.
ImageFolderWithManifest = absent(
    "habana_dataloader.habana_dataset.ImageFolderWithManifest",
    "it reads a list of files in a form of Habana's; use torchvision.datasets.ImageFolder",
)
