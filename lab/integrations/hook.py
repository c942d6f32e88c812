"""The hook by which lab.watch sees what a model receives."""

from collections.abc import Callable


class Hook:
    """The hook of a watched model. A copy or a file of the model has one that counts nothing."""

    def __init__(self, observe: Callable[..., None] | None = None) -> None:
        self.observe = observe

    def __call__(self, *arguments: object) -> None:
        if self.observe is not None:
            self.observe(*arguments)

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Hook, ()
