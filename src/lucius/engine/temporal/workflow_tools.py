"""Process-wide tools for decisions in workflows: Temporal creates workflow objects, so they can't be passed in."""

from lucius.core.model.decision import NoTools
from lucius.core.model.tools import Tools


class WorkflowTools:
    tools: Tools = NoTools()


workflow_tools = WorkflowTools()
