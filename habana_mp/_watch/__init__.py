"""Where a cast happens and where the cast log goes. It must not know what is cast, and why."""
