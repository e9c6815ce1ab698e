"""Rules for failures: retries, failure classes, deadlines, compensation and reviews."""
