"""The commands that run a script or a step to look at its numbers."""
