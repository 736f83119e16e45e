"""No adaptation: the frozen model as it is, the line that every method has to beat."""

from fozo.methods.common.options import NoOptions
from fozo.methods.method import Method, Nothing, Result
from fozo.methods.registry import register
from fozo.types import Batch


@register("noadapt", passes="1", adapts="nothing", paper="-")
class NoAdapt(Method[NoOptions, Nothing]):
    """The frozen model as it is.

    Examples:
        >>> fozo.NoAdapt(model)(batch).argmax(axis=1).tolist()
        [9, 3, 3, 9, 9, 7, 6, 6]
    """

    def step(self, state: Nothing, batch: Batch) -> Result[Nothing]:
        return Result(self.plain(batch), state)
