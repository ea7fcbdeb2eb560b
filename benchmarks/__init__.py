"""Measurements of the house beside the plain thing it replaces, alternately in one run. `make bench`."""
