"""Conformance kit: plays the orchestrator against a platform service in any language and reports contract violations.

`run` plays cases concurrently, each with its own `server` and service `process`; `attempt_log` judges callbacks as an
orchestrator would; `evidence` detects repeated executions from outside; `cases` holds the cases; `faulty_service` is a
service that can be made to fail each of them. Imports the message contract and nothing else of Lucius.
"""
