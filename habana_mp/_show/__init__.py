"""How figures, pages and warnings look. It must not know what is shown."""
