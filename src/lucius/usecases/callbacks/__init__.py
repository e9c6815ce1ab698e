"""ACK, heartbeat and RESULT callbacks: authenticated by token, then decided by the core."""
