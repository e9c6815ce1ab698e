"""`redis://` bus on streams: one stream per topic and service, with one consumer group named after the service.

A message is in its stream until it is settled, so a stream's length is what waits and what is at work. A consumer
that dies leaves its messages pending; others claim them once they have not been touched for a while, and whoever is at
work touches its own. What was given out too often, or can't be read, goes to the stream of dead letters.

Everything about one Redis is here: the connection, the scripts, and the three ports that stand on them. What else
speaks to it may rely on the streams' names and fields; `docs/how-to/write-a-service-without-sdk.md` has them.
"""
