"""Show which heads retrieve: the share of their attention on the copy of the answer, by layer, head and distance.

    probe-lab heads MODEL [MODEL ...] [--option=value ...] [--distance=METHOD] [--plot] [-o FOLDER]

Tests are those of probe-lab distance: one number, an exact number of tokens before the end of the prompt. While the
right answer is read, each of its tokens has a copy in the text. The share is the weight that a head gives to this copy
where it predicts the token, the mean over tokens and tests (lab/probe/heads.py). 1 is a head that copies and nothing
else. Several models, such as the checkpoints of a run, are a series:

    probe-lab heads runs/cpu_demo --plot
    probe-lab heads "runs/cpu_demo/checkpoints/*" --plot
    probe-lab heads runs/cpu_demo --distances=64,96,128 --tests=50 --distance=dca
    probe-lab heads models/Llama-3.1-8B --points=6 --tests=20 --haystack=essays.txt

Prints the ten heads with the largest share, by distance. The picture has all heads, and lines of the first five, for a
series also over trained tokens. Writes heads-NAME-HASH.jsonl, a line for each layer, head and distance.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.engine import needles, run
from eval.engine.command import EvaluationSpec, Request, run_evaluation
from eval.engine.subject import open_subject
from eval.engine.text import Result, to_text
from lab.core.chart import Axis, concat, plot_heat, plot_lines, save_chart
from lab.core.command import NOTHING_WRITTEN, Bar, start
from lab.core.schema import Length
from lab.core.types import Row
from lab.probe.heads import shares_by_head

if TYPE_CHECKING:
    import pandas as pd

TABLE_HEADS = 10


class HeadsOptions(needles.OneNumberOptions):
    """Options of this command."""

    window: Length | None = None
    """Tokens that prompt and answer fill; default: the training window."""


class Heads(run.Measure):
    """The attention of every head on the copy of the answer."""

    kind = "heads"
    options: HeadsOptions

    def prepare(self) -> None:
        """Build the tests."""
        window = self.options.window or self.subject.model.train_len
        self.probe = needles.one_number_probe(self.subject, self.options, window)

    def rows(self) -> Iterator[Row]:
        """Make a row for each distance, layer and head; `std` is over tests."""
        about = {**self.subject.row, **self.probe.describe_tests(), "metric": "attention_on_copy"}
        for distance in Bar(self.probe.distances, desc=self.kind, unit="distance"):
            for row in shares_by_head(self.subject.model.decoder, self.probe, distance):
                yield {**about, **row, "even": 1 / self.probe.prompt_tokens}

    def title(self) -> str:
        return f"{super().title()}; {self.probe.tests} tests at each distance, window {self.probe.window:,}"

    def text(self, rows: Sequence[Row]) -> str:
        """Write the heads with the largest means over the distances."""
        table = average_heads(rows, "distance")
        table["mean"] = table.mean(axis=1)
        table = table.nlargest(TABLE_HEADS, "mean")
        table.loc["even attention"] = rows[0]["even"]
        return to_text(table.rename_axis("distance"), ".3f")


def average_heads(rows: Sequence[Row], columns: str) -> "pd.DataFrame":
    """Average the shares of each head over what the columns do not name."""
    import pandas as pd  # here, because commands that print no table start sooner without it

    frame = pd.DataFrame(rows)
    names = "layer " + frame["layer"].astype(str) + ", head " + frame["head"].astype(str)
    return frame.pivot_table(index=names, columns=columns, values="score", sort=False)


def show_heads(request: Request) -> Result:
    """Measure each model, and show how the heads of the last one came about where there are several."""
    rows: list[Row] = []
    texts: list[str] = []
    files: list[Path] = []
    for model in request.positional:
        one = request._replace(model=model, plots=False)
        result = Heads(one, open_subject(one)).run()
        rows += result.rows
        texts.append(result.text)
        files += result.files
    last = result.rows
    top = average_heads(last, "distance").mean(axis=1).nlargest(TABLE_HEADS).index
    over_time = average_heads(rows, "consumed_tokens" if last[0]["consumed_tokens"] else "model").reindex(top)
    if len(texts) > 1:
        texts.append(f"mean over distances, of the heads that end with the largest\n\n{to_text(over_time, '.3f')}")
    picture = None
    if request.plots:
        picture = files[-1].with_suffix(".png")
        save_chart(plot_heads(last, over_time[:5]), picture)
    return Result("\n\n".join(texts), rows, files, picture)


def plot_heads(rows: Sequence[Row], over_time: "pd.DataFrame") -> Any:
    """Plot the mean of every head, the largest by distance, and of a series by trained tokens."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    means = frame.groupby(["layer", "head"], as_index=False)["score"].mean()
    share = Axis("score", "attention on the copy", percent=True)
    name = f"{rows[0]['model']}, {rows[0]['method']}: attention on the copy of the answer"
    panels = [plot_heat(means, "head", "layer", "score", percent=True, title=name)]
    by_distance = average_heads(rows, "distance").loc[over_time.index].rename_axis("name")
    lines = by_distance.reset_index().melt("name", var_name="distance", value_name="score")
    panels.append(plot_lines(lines, Axis("distance", "distance of the number (tokens)"), share, "name"))
    if over_time.shape[1] > 1:
        lines = over_time.rename_axis("name").reset_index().melt("name", var_name="tokens", value_name="score")
        panels.append(plot_lines(lines, Axis("tokens", "trained tokens"), share, "name"))
    return concat(*panels)


SPEC = EvaluationSpec(name="heads", description=__doc__, options=HeadsOptions, each=False, stopped=NOTHING_WRITTEN)
main = partial(run_evaluation, SPEC, show_heads)


if __name__ == "__main__":
    start(main)
