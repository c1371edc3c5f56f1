"""What a report finds in its rows: groups of them, advice, and who holds an op past a conversion."""
