"""Whether the arrays of a tree are a tree: the libraries that walk them look no further than they must.

A child that is no node, a circle, or a column that no row has would end a worker, or keep it for ever.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["check_tree"]


def check_tree(left: ArrayLike, right: ArrayLike, columns: ArrayLike, width: int) -> None:
    """Raises `ValueError` unless each node is a leaf or has two children, which nobody else has.

    left, right: of each node, the number of its child; negative for a leaf. columns: of each node, which of
    `width` columns it looks at.
    """
    children = np.stack([np.asarray(left, np.int64), np.asarray(right, np.int64)])
    looked_at = np.asarray(columns, np.int64)
    nodes = children.shape[1]
    is_leaf = (children < 0).all(axis=0)
    inner = children[:, ~is_leaf]
    if looked_at.shape != (nodes,):
        raise ValueError(f"a tree of {nodes} nodes looks at {looked_at.size} columns")
    if (inner < 0).any() or (inner >= nodes).any():
        raise ValueError(f"a tree of {nodes} nodes names a child that it does not have")
    # Each has one parent at most, and the first has none: from there no way leads in a circle.
    if (np.bincount(inner.ravel(), minlength=max(1, nodes)) > 1).any() or (inner == 0).any():
        raise ValueError("a tree has a node with several parents")
    looks = looked_at[~is_leaf]
    if (looks < 0).any() or (looks >= width).any():
        raise ValueError(f"a tree looks at a column that the {width} columns do not have")
