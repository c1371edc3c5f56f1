"""``hmp.explain``: which rule an op has, and the ops that a part of a name or a module stands for."""
