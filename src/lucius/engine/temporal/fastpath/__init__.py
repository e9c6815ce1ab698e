"""Latency shortcuts of the Temporal engine, used if LUCIUS_TEMPORAL_FASTPATH is on.

Only the wiring imports this package. The engine runs without it, by the plain route of `engine.py`, `workflow.py` and
`activities.py`; nothing here may be needed for correctness, and nothing here is imported by workflow code. The
workflow's side of the shortcuts is `early_messages.py` beside this folder: it does not depend on the setting. One
shortcut is not here: by the same setting, the wiring makes `workflow_client.py` ask for eager starts.
"""
