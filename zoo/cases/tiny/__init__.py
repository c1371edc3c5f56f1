"""Tiny configurations of architectures, and inputs for them."""
