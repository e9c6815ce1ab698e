"""Records, statuses, inputs and decisions that the rules work on."""
