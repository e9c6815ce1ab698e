"""The `lucius` command: starts servers and services, and speaks to a control plane over HTTP.

It opens no ledger by itself (`retention` apart): `client` sends requests, `render` shows answers. Only the commands
that start a server import the API and the wiring, and only when they run, so that the others start fast.
"""
