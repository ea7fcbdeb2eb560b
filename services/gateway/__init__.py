"""The HTTP API: tokens and limits at the door, everything behind it over the bus."""
