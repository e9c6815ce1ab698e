"""Project scaffold of `lucius new-service`: the names of a new service, and the templates of its project.

Imports the standard library only. `@@word@@` in a template stands for one of the `Names`.
"""

from lucius.scaffold.names import BadName, Names, names_for
from lucius.scaffold.project import Occupied, write_project
from lucius.scaffold.wheel import NoWheel, wheel_name, write_wheel

__all__ = ["BadName", "Names", "NoWheel", "Occupied", "names_for", "wheel_name", "write_project", "write_wheel"]
