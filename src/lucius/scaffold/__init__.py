"""What `lucius new-service` writes: the names of a new service, and the templates of its project.

Imports the standard library only. `@@word@@` in a template stands for one of the `Names`.
"""

from lucius.scaffold.names import BadName, Names, names_for
from lucius.scaffold.project import Occupied, write_project

__all__ = ["BadName", "Names", "Occupied", "names_for", "write_project"]
