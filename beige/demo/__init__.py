"""The demonstration's configuration and script, as `beige demo` puts them into a home."""
