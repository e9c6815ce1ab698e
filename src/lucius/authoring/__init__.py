"""What helps a protocol's author before it is published: pictures of it, and a rehearsal on a virtual clock.

Pure, like the core that it looks at: no files, no clock, no network. Expressions come in as `Tools`.
"""
