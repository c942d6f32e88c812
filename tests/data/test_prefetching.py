"""Batches made ahead in a thread: how far, in which order, and how it ends."""

import itertools
import threading

import pytest

from lab.data.module import ahead


def packing_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("packing")]


@pytest.mark.parametrize("prefetch", [1, 3])
def test_batches_are_made_ahead_by_another_thread_which_ends_with_its_reader(prefetch):
    made, makers, before, done = [], set(), packing_threads(), threading.Event()

    def batches():
        for number in itertools.count():
            made.append(number)
            makers.add(threading.current_thread())
            if number == prefetch + 1:  # while the second batch is in use
                done.set()
            yield {"number": number}

    reader = ahead(batches(), prefetch)
    assert made == []
    assert [next(reader)["number"] for _ in range(2)] == [0, 1]
    assert done.wait(10)
    assert len(made) == prefetch + 2
    assert threading.current_thread() not in makers
    reader.close()
    assert packing_threads() == before
