"""A ``Tuned`` as text and as a page."""
