"""The four-needle tests under their public names; see lab.probe.needles and lab.probe.released_needles."""

from lab.probe.needles import count_found as found
from lab.probe.needles import make_case
from lab.probe.released_needles import ReleasedPrompt, released_prompt

__all__ = ["ReleasedPrompt", "found", "make_case", "released_prompt"]
