"""Hand-over of directives, from PENDING outbox rows to services."""
