"""What is in force in this process. ``policy`` and ``verbose`` are among the assignments that ``convert`` makes, so they change with
its patches.
"""

from __future__ import annotations

from habana_mp._policy.policy import Policy

policy: Policy | None = None
verbose = False
# What the options of the command line name: every call of ``convert`` puts this one in force, whatever the script asks
# for.
cli_policy: Policy | None = None
# Whether the conversion in force is the command line's default, which goes when the script sets a policy of its own.
is_cli_default = False
