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


def demand(tokens, targets, lengths, distance):
    """Count the scored targets of a pack by evidence distance; distance(sequence, place) is the definition."""
    counts = {}
    for sequence, scored in runs_of(tokens, targets, lengths):
        for place in range(1, len(scored)):
            if scored[place] and (d := distance(sequence, place)):
                counts[d] = counts.get(d, 0) + 1
    return counts
