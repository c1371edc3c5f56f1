"""`habana_frameworks.torch.hpex`: Habana's optimizers, kernels and normalizations, by torch's own."""

from habana_mp import hmp

__all__ = ["hmp"]
