"""What all methods share at the server: the contract, the loop, messages and replies."""
