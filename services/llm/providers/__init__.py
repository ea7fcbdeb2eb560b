"""Providers: one file per foreign API, one typed set of failures."""
