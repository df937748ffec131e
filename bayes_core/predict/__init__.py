"""What a trained distribution says, how sure it is, and how good it is."""
