"""Stores and buses behind the ports. A URL picks one; each is imported only when picked.

An adapter imports ports and core and never another adapter; what several of them share (`group_commit`,
`cursor`) is no adapter itself.
"""
