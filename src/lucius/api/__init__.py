"""HTTP API: FastAPI for the docs and most routes, plain ASGI in front of it for the routes that carry the load.

Built on the use cases. HTTP statuses appear nowhere else.
"""
