"""Written by the build."""

TORCH_VERSION = "2.13.0+cpu"
