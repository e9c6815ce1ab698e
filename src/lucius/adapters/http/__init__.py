"""The parts of the HTTP caller: where it may connect to, what stands for a secret, how a webhook is signed.

Used by `http_caller` only.
"""
