"""Edits of a policy that the errors of a report speak for: what edits would change, which are taken, and in which words."""
