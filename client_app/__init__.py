"""What runs where the data is."""
