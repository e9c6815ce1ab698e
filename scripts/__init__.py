"""Scripts behind `make schemas` and `make docs`, which write pages and schemas from the code."""
