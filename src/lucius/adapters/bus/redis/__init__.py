"""`redis://` bus on streams: one stream per topic and service, with one consumer group named after the service.

A message stays in its stream until it is settled, so a stream's length counts waiting and running directives. A
consumer that dies leaves its messages pending; others take them over once its claims have not been renewed for a
while, so a running consumer renews its claims. Messages that were delivered too often or can't be read go to the
dead-letter stream.

The package has everything about Redis: the connection, the scripts, and the three ports built on them. Other programs
may rely on the streams' names and fields; `docs/how-to/write-a-service-without-sdk.md` describes them.
"""
