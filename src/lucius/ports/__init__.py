"""The seams: what Lucius needs of a store, a bus, a protocol source. Fewer than eight methods each, in domain words.

Ports import the core and nothing else; adapters implement them and never import each other.
"""
