"""The wording of the four-needle test (arXiv:2410.18745, Table 5), shared by the probe and the synthetic corpus."""

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there.\n\n"
)
NEEDLE = " One of the magic numbers is {number}."
QUESTION = "\n\nWhat are the magic numbers mentioned in the provided text?"
ANSWER_PREFIX = " The numbers are"


def example() -> str:
    """Spell out a test of three numbers, with every text of this module."""
    return TASK + NEEDLE.format(number="12") + QUESTION + ANSWER_PREFIX + answer(["12", "34", "56"])


def answer(numbers: list[str]) -> str:
    """Complete the answer prefix with the numbers in order.

    Example:
        >>> answer(["12", "34", "56"])
        ' 12, 34 and 56.'
    """
    if len(numbers) == 1:
        return f" {numbers[0]}."
    return " " + ", ".join(numbers[:-1]) + f" and {numbers[-1]}."
