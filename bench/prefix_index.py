"""What the prefix index costs a master: to ask for a prompt, to hear a worker, to remember.

python -m bench.prefix_index [--workers 8] [--blocks 12500]
"""

import argparse
import random
import sys
import timeit
import tracemalloc
from collections.abc import Callable
from functools import partial

from services.common.messages import CacheChanges, WorkerRef
from services.common.prefix_blocks import prompt_names
from services.common.wire import worker_message_from_proto, worker_message_to_proto
from services.pd_master.prefix_index import PrefixIndex
from sluice.v1 import worker_pb2 as pb


def names(count: int) -> list[int]:
    """Names of blocks that no other worker holds."""
    return [random.getrandbits(64) for _ in range(count)]


def best_of(call: Callable[[], object]) -> float:
    """Seconds of one call: the fastest of five rounds, since whatever else runs only adds."""
    return min(timeit.repeat(call, number=200, repeat=5)) / 200


def report(what: str, seconds: float) -> None:
    """One line."""
    sys.stdout.write(f"{what:<56}{1e6 * seconds:>9.1f} us\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=12_500, help="blocks that each worker holds: 800,000 slots")
    asked = parser.parse_args()
    workers = [WorkerRef(f"p{number}", "1") for number in range(asked.workers)]
    index, prompt = PrefixIndex(), [random.randrange(50_000) for _ in range(8192)]
    tracemalloc.start()
    for worker in workers:
        index.stored(worker, names(asked.blocks))
    each = tracemalloc.get_traced_memory()[0] / index.num_entries
    tracemalloc.stop()
    report("ask: 8192 tokens that nobody holds", best_of(lambda: index.cached_tokens(prompt)))
    for worker in workers[::2]:
        index.stored(worker, prompt_names(prompt))
    for num_tokens in (256, 1024, 8192):
        part = prompt[:num_tokens]
        report(f"ask: {num_tokens} tokens that half of them hold", best_of(partial(index.cached_tokens, part)))
    message = CacheChanges(1, 1, names(128), names(128))
    frame = worker_message_to_proto(message).SerializeToString()

    def hear() -> None:
        changes = worker_message_from_proto(pb.WorkerServiceSessionResponse.FromString(frame))
        assert isinstance(changes, CacheChanges)
        index.stored(workers[0], changes.stored)
        index.evicted(workers[0], changes.stored)

    report("hear: 128 blocks stored and 128 evicted", best_of(hear))
    sys.stdout.write(f"{'remember: a block of a worker':<56}{each:>9.0f} bytes\n")


if __name__ == "__main__":
    main()
