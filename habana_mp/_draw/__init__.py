"""``draw``: pictures of autograd graphs. Nothing that casts may know of it."""
