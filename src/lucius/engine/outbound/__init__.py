"""HTTP requests to other hosts: external calls and webhooks of protocols, and webhooks of finished jobs."""
