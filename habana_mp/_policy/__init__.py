"""What a policy says: lists of ops, where they come from, and which names and ops torch has. It must not know what is in force."""
