"""Measure what a model gains from evidence by its distance, on held-out text.

    probe-lab recall MODEL [--option=value ...] [--distance=METHOD] [--plot] [-o FOLDER]

The evidence of a target is, for instance, an earlier copy of a block of tokens that contains it (lab/evidence). Targets
are scored with the whole context of a training window, and with the context cut just behind their evidence. The
difference is the gain from evidence at that distance (lab/probe/recall.py). No number is hidden, so that models that
find none are told apart too. Targets without evidence have a line of their own, with their nats.

    probe-lab recall runs/cpu_stdlib --plot
    probe-lab recall runs/cpu_demo --distance=string:shift=64,window=32
    probe-lab recall runs/cpu_demo --targets=1000
    probe-lab recall models/Llama-3.1-8B --text=books/ --plot

Limits are at 95%, from 1,000 resamples of whole documents. A bin with fewer than 8 targets, or with those of one
document alone, is omitted. So a text needs two documents, as files of a folder or lines of a .jsonl file.

Prints a table. Writes recall-TOKENS-HASH.jsonl, a line for each bin of distances and one for targets without evidence.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from eval.engine import command, texts
from eval.engine.text import columns_text, limits
from lab.core.chart import Axis, plot_lines
from lab.core.command import Bar, start
from lab.core.errors import DataError
from lab.core.schema import PathText, Tests
from lab.core.types import CONFIDENCE, Row
from lab.data.tokenizer import check_ids
from lab.evidence.methods import Repeat
from lab.probe.recall import FEWEST, RecallTest, half_octaves


class RecallOptions(command.SampledOptions):
    """Options of this command."""

    targets: Tests = 300
    """Targets of each bin, at most."""
    text: PathText | None = None
    """Source of the documents: a folder or a pattern of .txt, .md, .py, .json or .jsonl files, or a .jsonl file with
    one in each line; default: the run's held-out documents."""


class Recall(texts.OnTexts):
    """The gain from evidence by its distance."""

    kind = "recall"
    options: RecallOptions
    columns = (
        ("distance", lambda row: f"{row['distance']:,}-{row['last']:,}", ""),
        ("targets", "n", ","),
        ("documents", "documents", ","),
        ("share", "share", ".2%"),
        ("nats whole", "nats_whole", ".3f"),
        ("nats cut", "nats_cut", ".3f"),
        ("gain", "score", ".3f"),
        ("95% limits", lambda row: limits(row, ".3f"), ""),
        ("right whole", "right_whole", ".3f"),
        ("right cut", "right_cut", ".3f"),
    )

    def prepare(self) -> None:
        """Read the documents and draw the targets.

        Raises: LabError where there is no text, or too little evidence in it.
        """
        options, model = self.options, self.subject.model
        window = model.train_len
        self.evidence = model.experiment.evidence if model.experiment else Repeat()
        documents = texts.load_documents(self.subject, options.text)
        self.documents = [np.asarray(ids, dtype=np.int64) for ids, _ in documents]
        check_ids(np.concatenate(self.documents), self.subject.vocab_size)
        self.test = RecallTest(
            self.documents,
            self.evidence,
            window=window,
            edges=half_octaves(window),
            most=options.targets,
            seed=options.seed,
            device=self.subject.device,
            without=True,
        )
        if not any(target.distance for target in self.test.targets):
            rule = f"no bin has {FEWEST} targets with evidence in two of its {len(documents)} documents"
            raise DataError(f"--text={options.text or 'held out'}: {rule}; give more text")

    def rows(self) -> Iterator[Row]:
        """Score the targets, and make a row for each bin."""
        test = self.test
        # Targets are scored two times: with the whole context, and with the cut one, which is whole without evidence.
        with Bar(total=2 * len(test.targets), desc=self.kind, unit="context") as bar:
            scores = test.scores(self.subject, test.targets, bar.update)
        shared = {
            **self.origin,
            **self.subject.row,
            "evidence": asdict(self.evidence),
            "window": test.window,
            "confidence": CONFIDENCE,
            "texts": texts.hash_documents(self.documents),
            "source": self.options.text or "held out",
        }
        for row in test.summarize(scores):
            metric = "recall"
            if not row["distance"]:
                metric = "no_evidence"
                for name in ("distance", "last", "middle", "nats_cut", "right_cut"):
                    del row[name]
            yield {**shared, "metric": metric, **row}

    def title(self) -> str:
        model, source = self.subject.model, self.options.text or "held out"
        evidence = " ".join(map(str, asdict(self.evidence).values()))
        return f"{model.name}: {model.method}; {len(self.documents):,} documents, {source}; evidence: {evidence}"

    def text(self, rows: Sequence[Row]) -> str:
        """Write the bins as a table, and a line for the targets without evidence."""
        bins = [row for row in rows if row["metric"] == "recall"]
        lines = [columns_text(bins, self.columns), ""]
        for row in rows:
            if row["metric"] == "no_evidence":
                share = f"{row['score']:.3f} nats, within {limits(row, '.3f')}, {row['right_whole']:.1%} right"
                lines.append(f"without evidence {share}; {row['n']:,} targets of {row['documents']:,} documents")
        return "\n".join(lines)

    def chart(self, rows: Sequence[Row]) -> Any:
        """Plot the gain with its limits."""
        return plot_lines(
            [row for row in rows if row["metric"] == "recall"],
            Axis("middle", "distance of the evidence (tokens)", log=True),
            Axis("score", "gain (nats)"),
            title=self.title().replace("; ", "\n"),
            limits=True,
        )


main = Recall.main

if __name__ == "__main__":
    start(main)
