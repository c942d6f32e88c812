"""Reads answers off a prompt by what its text says, sharing nothing with what wrote it."""

import re
from collections import Counter


def solve(prompt):
    """List the right answers to a prompt of any task."""
    for mark, reader in READERS.items():
        if mark in prompt:
            return reader(prompt)
    raise AssertionError(f"no task looks like this: {prompt[-200:]}")


def needles(prompt):
    """List (kind, key, value) of all needles."""
    return re.findall(r"One of the special magic (\w+) for (\S+) is: (\S+)\.", prompt)


def solve_niah(prompt):
    asked = re.search(r"What (?:is|are all) the special magic \w+ for (.+) mentioned in the provided text\?", prompt)
    queries = re.split(r", and |, ", asked.group(1))
    return [value for query in queries for _, key, value in needles(prompt) if key == query]


def solve_vt(prompt):
    text, question = prompt[: prompt.rindex("Question:")], prompt[prompt.rindex("Question:") :]
    text = text[text.rindex("Memorize and track") :]
    wanted = re.search(r"assigned the value (\d+)", question).group(1)
    held = {}
    for name, old, number in re.findall(r"VAR (\w+) = (?:VAR (\w+)|(\d+))", text):
        held[name] = number or held[old]
    return [name for name, number in held.items() if number == wanted]


def listed(prompt):
    """List the words of the last numbered list, and check its numbers."""
    text = prompt[prompt.rindex("Below is a numbered list") : prompt.rindex("\nQuestion:")]
    entries = re.findall(r"(\d+)\. (\w+)", text.split("\n")[1])
    assert [int(number) for number, _ in entries] == list(range(1, len(entries) + 1))
    return [word for _, word in entries]


def solve_cwe(prompt):
    return [word for word, _ in Counter(listed(prompt)).most_common(10)]


def solve_fwe(prompt):
    words = prompt[prompt.index("coded words. ") + len("coded words. ") : prompt.index("\nQuestion:")].split(" ")
    return [word for word, _ in Counter(word for word in words if word != "...").most_common(3)]


def documents(prompt):
    """List the documents, and check their numbers."""
    text = prompt.split("The following are given documents.\n\n")[1].split("\n\nAnswer the question based")[0]
    parts = re.findall(r"Document (\d+):\n(.*?)(?=\n\nDocument \d+:\n|\Z)", text, re.DOTALL)
    assert [int(number) for number, _ in parts] == list(range(1, len(parts) + 1))
    return [part for _, part in parts]


def solve_qa(prompt):
    question = prompt[prompt.rindex("Question: ") :]
    assert question.endswith(" Answer:")
    text = " ".join(documents(prompt))
    if "colour" in question:
        paragraph, article = re.search(r"paragraph (\d+) of article (\d+)", question).groups()
        colour = re.search(rf"Paragraph {paragraph} of article {article}\. Its colour is (\w+)", text).group(1)
        return [colour, f"the {colour}"]
    town = re.search(rf"Author {re.search('author ([0-9]+)', question).group(1)} lives in (Town \d+)", text).group(1)
    return [re.search(rf"{town} is small\. Through it flows (\w+)", text).group(1)]


READERS = {
    "special magic": solve_niah,
    "variable assignment": solve_vt,
    "numbered list of words": solve_cwe,
    "coded text": solve_fwe,
    "given documents": solve_qa,
}
