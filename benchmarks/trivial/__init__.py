"""A method whose clients compute nothing: what is left of a round is what carries it."""
