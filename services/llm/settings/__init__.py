"""Session settings: whose word holds, and where it is kept."""
