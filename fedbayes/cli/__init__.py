"""The command and its output."""
