"""What beige's processes share: envelope, bus client, configuration, paths, plugin API and CLI."""

__version__ = "0.1.0"
