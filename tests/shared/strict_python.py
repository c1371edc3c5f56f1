"""Options of Python for programs in which a warning is an error."""

# Dynamo warns on Python 3.13.0, of which guards are slower there.
STRICT = ("-W", "error", "-W", "ignore:Guards may run slower on Python 3.13.0")
