"""Step kinds, one module each; `task` has what all dispatched steps share."""
