"""What drives jobs forward when nobody calls: the relay pushes the outbox, the sweeper minds the clocks, and
the engine's own calls go out.

Feeds the core through the service layer; holds no rule about states itself.
"""
