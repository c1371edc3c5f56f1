"""Recordings of runs as files: what of a run they keep, their form, and ``record``."""
