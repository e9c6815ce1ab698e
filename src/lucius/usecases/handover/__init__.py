"""Hand-over of directives, from PENDING outbox rows to services.

`pull.py` answers services that pull, and `publish.py` serves the relay of a push bus. Both take rows from
`row_holds.py`, keep to the caps of `unacked_caps.py` and record outcomes with `handover_recorder.py`. `broker.py`
reserves waiting pulls for decisions in progress. How a job changes is decided in `core/`.

Only pulls of PENDING rows use `outbox_handover.py`; only waiting pulls `broker.py`, `waiting_pulls.py`,
`deliverable_directives.py` and `uncertain_commits.py`; only push buses `publish.py` and `unpublished_claims.py`.
"""
