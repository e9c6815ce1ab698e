"""What `make schemas` and `make docs` run: pages and schemas written from the code."""
