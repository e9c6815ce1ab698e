"""The tools that decisions in workflows are handed. A workflow is made by Temporal, so they can't be given to it."""

from lucius.core.decision import NoTools
from lucius.core.tools import Tools


class Rules:
    tools: Tools = NoTools()


rules = Rules()
