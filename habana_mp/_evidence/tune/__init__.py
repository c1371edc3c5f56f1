"""Policies chosen by measurement: the fastest one that keeps an error budget."""
