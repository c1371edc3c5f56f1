"""Mixed precision by policy for the trainers of others: ``habana_mp.trainers.lightning``, ``.transformers``, ``.accelerate``.

Each needs its library, which is imported with it.
"""
