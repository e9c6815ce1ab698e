"""The conformance kit: plays the orchestrator against a platform service in any language and says what it gets wrong.

`run` puts the cases on stage side by side, each with a `server` and service `process` of its own; `book` judges what
the service says as an orchestrator would; `evidence` tells executions apart from outside; `cases` holds the demands;
`broken` is a service that can be made to fail each of them. Knows the message contract and nothing else of Lucius.
"""
