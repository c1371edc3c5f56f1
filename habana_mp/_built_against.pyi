"""Written by the build into the installed package: see CMakeLists.txt."""

TORCH_VERSION: str
