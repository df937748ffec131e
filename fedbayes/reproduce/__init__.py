"""The paper's tables and figures from one command: which runs they take, what they came to, and what is claimed."""
