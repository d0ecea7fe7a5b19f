"""A skew heap over numbered nodes: one array serves all queues that are ordered by time."""

import numpy as np

from kvpaper.serving.compiled import compiled, inlined

NODE = np.dtype([("key", np.float64), ("left", np.int32), ("right", np.int32)])
NONE = -1


@inlined
def _before(node, a, b):
    return node[a].key < node[b].key or (node[a].key == node[b].key and a < b)


@compiled
def merged(node, a, b):
    """Root of the heap that joins two heaps by their roots; ties go to the lower number."""
    if a < 0:
        return b
    if b < 0:
        return a
    if _before(node, b, a):
        a, b = b, a
    root = a
    while True:
        right = node[a].right
        node[a].right = node[a].left
        if right < 0:
            node[a].left = b
            return root
        if _before(node, b, right):
            right, b = b, right
        node[a].left = right
        a = right


@compiled
def pushed(node, root, number, key):
    """Root after a node has joined."""
    node[number].key = key
    node[number].left = NONE
    node[number].right = NONE
    return merged(node, root, number)


@compiled
def popped(node, root):
    """Root after the least node has left."""
    return merged(node, node[root].left, node[root].right)
