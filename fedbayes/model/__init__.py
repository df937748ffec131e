"""A trained model in one's hands."""
