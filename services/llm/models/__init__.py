"""The agent's models: which is asked, with whose leave, and what its answer is worth."""
