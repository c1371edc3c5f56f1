"""Gaudi's device name and flags on other machines. Nothing that casts may know of it."""
