"""Batches made ahead in a thread: how far, in which order, and how it ends."""

import itertools
import threading

import pytest

from lab.data.module import prefetch
from tests.forked import python

ABANDONED = """
import faulthandler, gc, itertools, threading, weakref
from lab.data.module import prefetch
faulthandler.dump_traceback_later(30, exit=True)
class Thing: pass
packs, things = weakref.WeakSet(), ({"pack": Thing()} for _ in itertools.count())
def noted(batch):
    packs.add(batch["pack"])
    return batch
gc.disable()
ring = Thing()
ring.itself, ring.reader = ring, prefetch(map(noted, things), 3)
next(ring.reader)
[packing] = [thread for thread in threading.enumerate() if thread.name.startswith("packing")]
del ring
own = threading._maintain_shutdown_locks  # called with the lock that an ending thread takes
threading._maintain_shutdown_locks = lambda: (own(), gc.collect())
threading.Thread(target=print, args=("started",)).start()
packing.join()
print(len(packs))
"""


def packing_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("packing")]


@pytest.mark.parametrize("n", [1, 3])
def test_batches_are_made_ahead_by_another_thread_which_ends_with_its_reader(n):
    made, makers, before, done = [], set(), packing_threads(), threading.Event()

    def batches():
        for number in itertools.count():
            made.append(number)
            makers.add(threading.current_thread())
            if number == n + 1:  # while the second batch is in use
                done.set()
            yield {"number": number}

    reader = prefetch(batches(), n)
    assert made == []
    assert [next(reader)["number"] for _ in range(2)] == [0, 1]
    assert done.wait(240)
    assert len(made) == n + 2
    assert threading.current_thread() not in makers
    reader.close()
    for thread in {*packing_threads()} - {*before}:
        thread.join(10)
    assert packing_threads() == before


@pytest.mark.skipif(
    not hasattr(threading, "_maintain_shutdown_locks"), reason="this Python's threads end without a lock for all"
)
def test_a_reader_collected_while_a_thread_starts_waits_for_nothing_and_its_packs_are_freed():
    done = python("-c", ABANDONED)
    assert (done.stdout.split(), done.returncode) == (["started", "0"], 0), done.stderr
