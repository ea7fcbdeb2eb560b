"""Sessions: their files, and what is told of them."""
