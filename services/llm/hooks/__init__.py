"""Plugins that are shown an agent's prompts and answers, and what comes of it."""
