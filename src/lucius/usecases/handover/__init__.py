"""Hand-over of directives, from PENDING outbox rows to services.

`pull.py` answers services that pull, and `publish.py` serves the relay of a push bus. Both take rows from
`row_holds.py`, keep to the caps of `unacked_caps.py` and record outcomes with `handover_recorder.py`. `broker.py`
reserves waiting pulls for decisions in progress. How a job changes is decided in `core/`.
"""
