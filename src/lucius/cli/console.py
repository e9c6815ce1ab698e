"""Console that every renderer of the command line prints to."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from lucius.terminal import strip_controls


class SafeConsole(Console):
    """A console whose text can't control the terminal: every renderable passes through `render`."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control or text.isprintable() else Segment(strip_controls(text), style)
