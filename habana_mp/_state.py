"""What is in force in this process. Both names are among the assignments that ``convert`` makes, so they change with its patches."""

from __future__ import annotations

from habana_mp._policy import Policy

policy: Policy | None = None
verbose = False
