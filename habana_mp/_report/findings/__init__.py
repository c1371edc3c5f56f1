"""What a report finds in its rows: groups of them, advice, edits of the policy, and who holds an op past a conversion."""
