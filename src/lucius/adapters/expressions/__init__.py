"""CEL expressions, templates and JSON Schemas, as the core uses them."""
