"""Counts what something leaves to the garbage collector."""

import gc
from collections import Counter
from collections.abc import Callable


def left_in_cycles(work: Callable[[], None]) -> list[object]:
    """Do something twice and return what the second time leaves in reference cycles; the first may import and cache."""
    work()
    gc.collect()
    gc.freeze()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        work()
        gc.collect()
        return [*gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()


def shown(left: list[object]) -> str:
    """What they are, for a failure's message."""
    return str(Counter(f"{type(each).__qualname__} {each!s:.80}" for each in left).most_common(10))
