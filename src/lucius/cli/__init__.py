"""The `lucius` command: starts servers and services, and speaks to a control plane over HTTP.

It never opens a ledger by itself: `client` is how it asks, `render` is how it shows. Only the commands that start a
server import the API and the wiring, and only when they run, so that the others start fast.
"""
