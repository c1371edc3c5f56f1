"""Graphs of torch.compile that a policy is in force for. It must not know the front ends."""
