"""Runs in a browser: `fedbayes watch` serves their pages on this machine."""
