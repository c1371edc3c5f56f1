"""``report``: what happened, counted, summed and shown. Nothing that casts may know of it."""
