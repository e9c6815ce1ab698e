"""The configuration file, read at start and again whenever it changes."""
