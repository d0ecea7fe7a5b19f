"""Caches of blocks: GPU memory of an instance and units of tiers, each a list from old to young.

``links[store, block]`` holds the younger and the older neighbour, plus one. 0 means absent; in GPU
memory a negative number counts the requests that hold the block, which then stands in no list.
The row past the last block closes the list. A block that is evicted keeps -1 as its older
neighbour: it has been seen.
"""

from kvpaper.serving.compiled import compiled, inlined

# Added to the count of holders while the block is still to be computed or fetched.
PENDING = 1 << 24
SEEN = -1


@inlined
def usable(links, store, block):
    """Whether a block is there and computed."""
    return links[store, block, 0] != 0 and links[store, block, 0] > -PENDING


@compiled
def unlink(links, store, block):
    younger, older = links[store, block, 0], links[store, block, 1]
    links[store, younger - 1, 1] = older
    links[store, older - 1, 0] = younger


@compiled
def make_youngest(links, store, block):
    end = links.shape[1] - 1
    older = links[store, end, 1]
    links[store, block, 0] = end + 1
    links[store, block, 1] = older
    links[store, older - 1, 0] = block + 1
    links[store, end, 1] = block + 1


@compiled
def evict_oldest(links, store):
    end = links.shape[1] - 1
    oldest = links[store, end, 0] - 1
    unlink(links, store, oldest)
    links[store, oldest, 0] = 0
    links[store, oldest, 1] = SEEN


@compiled
def pin(links, x, e, ids):
    """An instance holds the blocks of a request; those it lacks are pending. Makes room."""
    for block in ids:
        held = links[e, block, 0]
        if held < 0:
            links[e, block, 0] = held - 1
            continue
        if held > 0:
            unlink(links, e, block)
            x.listed -= 1
            links[e, block, 0] = -1
        else:
            links[e, block, 0] = -1 - PENDING
        x.pinned += 1
    while x.pinned + x.private + x.listed > x.capacity:
        evict_oldest(links, e)
        x.listed -= 1


@compiled
def mark_computed(links, e, ids):
    for block in ids:
        if links[e, block, 0] <= -PENDING:
            links[e, block, 0] += PENDING


@compiled
def unpin(links, x, e, ids):
    """The request lets go: what nobody else holds becomes the youngest, last block first."""
    for i in range(len(ids) - 1, -1, -1):
        block = ids[i]
        links[e, block, 0] += 1
        if links[e, block, 0] == 0:
            make_youngest(links, e, block)
            x.pinned -= 1
            x.listed += 1


@compiled
def keep(links, x, e, ids):
    """Keep the blocks of an answer in GPU memory as the youngest, last block first."""
    for i in range(len(ids) - 1, -1, -1):
        block = ids[i]
        held = links[e, block, 0]
        if held < 0:
            continue
        if held > 0:
            unlink(links, e, block)
            x.listed -= 1
        elif x.pinned + x.private + x.listed >= x.capacity:
            if x.listed == 0:
                continue
            evict_oldest(links, e)
            x.listed -= 1
        make_youngest(links, e, block)
        x.listed += 1


@compiled
def refresh(links, store, ids):
    """Blocks of a request that a tier holds become its youngest, last block first."""
    for i in range(len(ids) - 1, -1, -1):
        if links[store, ids[i], 0] > 0:
            unlink(links, store, ids[i])
            make_youngest(links, store, ids[i])


@compiled
def store_written(links, unit, ids, first, stop):
    """A write has ended: blocks ``first`` to ``stop`` are there, all become young."""
    for i in range(len(ids) - 1, -1, -1):
        block = ids[i]
        if links[unit.store, block, 0] > 0:
            unlink(links, unit.store, block)
        elif first <= i < stop:
            if unit.listed == unit.capacity:
                evict_oldest(links, unit.store)
            else:
                unit.listed += 1
        else:
            continue
        make_youngest(links, unit.store, block)


@compiled
def admitted(links, store, ids, second_use):
    """Blocks that a tier takes from a request: from the first it lacks to the first new to it.

    Marks all as seen.
    """
    first, stop = -1, len(ids)
    for i in range(len(ids)):
        block = ids[i]
        if links[store, block, 0] != 0:
            continue
        seen = links[store, block, 1] == SEEN
        links[store, block, 1] = SEEN
        if second_use and not seen:
            stop = min(stop, i)
        elif first < 0:
            first = i
    if first < 0 or first >= stop:
        return 0, 0
    return first, stop
