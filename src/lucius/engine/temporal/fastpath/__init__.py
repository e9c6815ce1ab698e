"""Every latency shortcut of the Temporal engine, used if LUCIUS_TEMPORAL_FASTPATH is on.

Only the wiring imports this package. The engine runs without it, by the plain route of `engine.py` and `workflow.py`;
nothing here may be needed for correctness, and nothing here is imported by workflow code. The workflow's side of the
shortcuts is `early_messages.py` beside this folder: it does not depend on the setting.
"""
