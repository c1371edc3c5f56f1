"""The public names under the name that HMP's scripts use: ``from habana_mp import hmp``."""

from habana_mp import *  # noqa: F403
from habana_mp import __all__ as __all__  # noqa: PLC0414 - so that mypy takes it for public
