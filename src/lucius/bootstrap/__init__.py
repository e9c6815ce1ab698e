"""Reads the settings and wires a control plane from them. Only this package names concrete adapters."""
