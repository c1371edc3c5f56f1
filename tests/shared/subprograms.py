"""How tests start programs of their own: the options of Python, and what its memory is measured with."""

# A warning is an error. Dynamo warns on Python 3.13.0, of which guards are slower there; Inductor, at its import, uses what torch deprecates.
STRICT = ("-W", "error", "-W", "ignore:Guards may run slower on Python 3.13.0", "-W", "ignore:`torch.jit")
# glibc maps each block of this size by itself and gives it back when it is freed, so that resident memory is what is alive.
MAPS_EACH_TENSOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
