"""HTTP: FastAPI for the docs and most routes, a thin front for the four that carry the load.

Sits on the service layer. HTTP statuses appear nowhere else.
"""
