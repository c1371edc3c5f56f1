"""Graphs of torch.compile and torch.export that a policy is in force for. It must not know the front ends."""
