"""The skip section of a run's config: `method` selects, the other keys belong to the method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field

from lab.skip.methods import SKIP_METHODS

if TYPE_CHECKING:
    SkipConfig = Any
else:  # the table is the one place that lists the methods
    SkipConfig = Annotated[Union[tuple(SKIP_METHODS.values())], Field(discriminator="method")]  # noqa: UP007
