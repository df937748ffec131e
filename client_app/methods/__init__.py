"""The client's half of every method, one file each, found by the method's name."""
