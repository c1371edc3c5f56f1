"""Mixed precision by policy in trainers of other libraries: ``habana_mp.trainers.lightning``, ``.transformers`` and ``.accelerate``.

Importing one of them imports its library, which has to be installed.
"""
