r"""The one-number tests of `probe-lab distance` as tasks of lm-evaluation-harness, for any model that it loads.

    lm-eval run --model hf --model_args pretrained=FOLDER --tasks lab_reach \
        --include_path $(python -m lab.integrations.lm_eval) --metadata '{"window": 2048, "haystack": "essays.txt"}'

`lab_reach` asks the question of `probe-lab distance`. `lab_reach_continuation` ends the text by "The number is", for
base models that do not answer questions. A model of the harness receives the tokens of a test, and encodes no text. So
no <bos> is added, and no tokenizer joins a full stop and a line break, or a blank and a digit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from lm_eval.api.instance import Instance
from lm_eval.api.task import Task
from lm_eval.config.task import TaskConfig
from tokenizers import Tokenizer

from lab.core.errors import ConfigError
from lab.data.text_files import read_texts
from lab.data.tokenizer import TOKENIZER, load_tokenizer
from lab.integrations.retrieval import COLUMNS, Test, build_tests, tabulate_tests
from lab.probe.effective_distance import QUESTION

TASKS = Path(__file__).parent / "tasks"
METHOD = "_loglikelihood_tokens"  # of the harness's models: what `loglikelihood` calls with encoded texts


@dataclass
class TokenRequest(Instance):  # type: ignore[misc]
    """A request that METHOD reads as a triple: no key for a cache, the tokens before, and the tokens to score."""

    tokens: tuple[None, Sequence[int], Sequence[int]] = (None, (), ())

    def __getitem__(self, index: Any) -> Any:
        return self.tokens[index]


class Uncut(list[int]):
    """The tokens of a test, of which a model of the harness would take the last ones by a slice, silently.

    Raises: ConfigError for a slice that is shorter than the `window`.
    """

    def __init__(self, tokens: Sequence[int], window: int) -> None:
        super().__init__(tokens)
        self.window = window

    def __add__(self, other: Any) -> Any:
        return Uncut([*self, *other], self.window)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and -self.window < (index.start or 0) < 0:
            raise ConfigError(
                f"window={self.window}: is longer than the model, which would cut its tests; lower it, or pass a "
                "larger max_length to the model"
            )
        return super().__getitem__(index)


class ReachTask(Task):  # type: ignore[misc]
    """Accuracy, limits and log-probability by distance, and the retrieval range.

    The harness's metadata has `window`, in tokens, and may have `haystack`, a text file; `tests` at each distance;
    `distances`; `seed`; and `tail`, the text that ends a prompt.
    """

    VERSION = 1
    OUTPUT_TYPE = METHOD

    def __init__(self, config: dict[str, Any]) -> None:
        self.settings = config["metadata"]
        super().__init__()
        self._config = TaskConfig(task=config["task"], metadata=self.settings, num_fewshot=0)

    def download(self, *_: object) -> None:
        """Build the tests.

        Raises: LabError.
        """
        settings = self.settings
        haystack = settings.get("haystack")
        if haystack is not None:
            haystack = "\n".join(read_texts(Path(haystack), "haystack"))
        self.probe = build_tests(
            read_tokenizer_of_model(settings),
            settings.get("window"),
            settings.get("tests", 100),
            settings.get("distances"),
            settings.get("seed", 0),
            haystack=haystack,
            question=settings.get("tail", QUESTION),
        )

    def has_training_docs(self) -> bool:
        return False

    has_validation_docs = has_training_docs

    def has_test_docs(self) -> bool:
        return True

    def test_docs(self) -> list[dict[str, int]]:
        """List the tests, each by its distance and number."""
        # Test by test, so that the harness's --limit omits no distance.
        return [
            {"distance": distance, "test": test}
            for test, distance in product(range(self.probe.tests), self.probe.distances)
        ]

    def doc_to_text(self, doc: dict[str, int]) -> str:
        return self.probe.tokenizer.decode(self.tokens(doc)[1])

    def doc_to_target(self, doc: dict[str, int]) -> str:
        return self.probe.tokenizer.decode(self.tokens(doc)[2])

    def fewshot_context(self, doc: dict[str, int], **settings: object) -> str:
        """Return the text of a prompt.

        Raises: ConfigError for examples, turns or instructions, which a test does not have.
        """
        for name in ("num_fewshot", "apply_chat_template", "system_instruction"):
            if settings.get(name):
                raise ConfigError(f"{name}={settings[name]}: would be ignored, as tests are plain text; remove it")
        return self.doc_to_text(doc)

    def tokens(self, doc: dict[str, int]) -> tuple[None, list[int], list[int]]:
        """Return the tokens of a prompt, and those of its number."""
        case = self.probe.case(**doc)
        answer, scored = case.encoded.answer, case.encoded.scored
        prompt = Uncut([*case.prompt_ids, *answer[: scored[0]]], self.probe.window)
        return None, prompt, answer[scored[0] : scored[-1] + 1]

    def construct_requests(self, doc: dict[str, int], ctx: str, metadata: object, **_: object) -> TokenRequest:
        # The texts are for the harness's log of samples.
        return TokenRequest(METHOD, doc, (ctx, self.doc_to_target(doc)), 0, metadata, tokens=self.tokens(doc))

    def list_metrics(self, distance: int) -> list[str]:
        """List the metrics that a test belongs to; the harness sorts them as text, so that distances have zeros."""
        digits = len(str(self.probe.window))
        return ["reach", "reach_low", "reach_high", *(f"{score}@{distance:0{digits}}" for score in COLUMNS[2:])]

    def process_results(self, doc: dict[str, int], results: Sequence[tuple[float, bool]]) -> dict[str, Test]:
        [(log_prob, is_greedy)] = results
        distance = doc["distance"]
        return dict.fromkeys(self.list_metrics(distance), Test(distance, is_greedy, log_prob))

    def aggregation(self) -> dict[str, Callable[[list[Test]], float | None]]:
        """Return the function of each metric, from its tests to its value."""
        metrics = chain.from_iterable(map(self.list_metrics, self.probe.distances))
        return {metric: partial(find_value, metric) for metric in metrics}

    def higher_is_better(self) -> dict[str, bool]:
        return dict.fromkeys(self.aggregation(), True)


def find_value(metric: str, tests: list[Test]) -> float | None:
    """Return the value of a metric from the tests that it is about."""
    table = tabulate_tests(tests)
    name, _, distance = metric.partition("@")
    return float(table[name].iloc[0]) if distance else table.attrs[name]


def read_tokenizer_of_model(arguments: dict[str, Any]) -> Tokenizer:
    """Read the tokenizer.json that a model's arguments name: in a folder, or of a model of the hub.

    Raises: LabError.
    """
    source = arguments.get("tokenizer") or arguments.get("pretrained") or arguments.get("model")
    if not isinstance(source, str):  # a model object, for instance
        raise ConfigError("tokenizer: is missing; pass it by --model_args tokenizer=FOLDER")
    if not Path(source).exists():
        source = hf_hub_download(source, TOKENIZER, revision=arguments.get("revision"))
    return load_tokenizer(Path(source))


if __name__ == "__main__":
    print(TASKS)  # noqa: T201
