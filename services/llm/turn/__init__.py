"""A turn: what is decided of it, and what carries it out."""
