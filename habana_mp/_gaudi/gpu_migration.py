"""`habana_frameworks.torch.gpu_migration`: on Gaudi its import takes a script's "cuda" for "hpu". Here "cuda" stays what it is."""

__all__: list[str] = []
