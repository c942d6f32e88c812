"""Evidence distances by their definition, token by token, in plain Python."""

IGNORE = -100


def runs_of(tokens, targets, lengths):
    """List each run's sequence, and whether each of its places is a scored target."""
    begin = 0
    for length in lengths:
        own = [int(x) for x in targets[begin : begin + length]]
        sequence = [int(x) for x in tokens[begin : begin + length]]
        if own[-1] != IGNORE:
            sequence.append(own[-1])
        yield sequence, [False, *(target != IGNORE for target in own)]
        begin += length


def repeat(sequence, place, n):
    """Find the least distance to an earlier copy of a block of n tokens that contains a place; 0 without one."""
    found = []
    for start in range(max(0, place - n + 1), min(place, len(sequence) - n) + 1):
        block = sequence[start : start + n]
        found += [start - s for s in range(start) if sequence[s : s + n] == block]
    return min(found, default=0)


def expected(tokens, targets, lengths, distance):
    """List, by indices of a pack, the distances of all targets that are tokens; distance(sequence, place) defines."""
    indices, found, begin = [], [], 0
    for length, (sequence, _) in zip(lengths, runs_of(tokens, targets, lengths), strict=True):
        indices += range(begin, begin + len(sequence) - 1)
        found += [distance(sequence, place) for place in range(1, len(sequence))]
        begin += length
    return indices, found


def demand(tokens, targets, lengths, distance, ids=None):
    """Count the scored targets of a pack by evidence distance; distance(sequence, place) is the definition.

    With `ids`, by one more than the relative position at which the token before the target sees its evidence.
    """
    counts, begin = {}, 0
    for length, (sequence, scored) in zip(lengths, runs_of(tokens, targets, lengths), strict=True):
        for place in range(1, len(scored)):
            if scored[place] and (d := distance(sequence, place)):
                if ids is not None:
                    d = int(ids[begin + place - 1]) - int(ids[begin + place - d]) + 1
                counts[d] = counts.get(d, 0) + 1
        begin += length
    return counts
