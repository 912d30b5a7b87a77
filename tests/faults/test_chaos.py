"""Everything at once: all APIs and features, while processes are killed, stopped, drained and cut off.

make chaos CHAOS_S=600 SEED=7
"""

import os
import random
import sys
from pathlib import Path

import pytest

from tests.engine.tiny import make_worded_model
from tests.faults.chaos.cases import random_cases
from tests.faults.chaos.clients import Clients
from tests.faults.chaos.size import REAL, TINY
from tests.faults.chaos.storm import Storm
from tests.faults.chaos.town import Town, random_plan
from tests.integration.tools_template import with_tools

CHAOS_S = float(os.environ.get("CHAOS_S", "0"))
SEED = int(os.environ.get("SEED", "1"))
MODEL = os.environ.get("MODEL")
"""A model's folder; without one, a tiny random model of random words, which is fast and shows more in the same time."""
SIZE = REAL if MODEL else TINY


def tiny_model(folder: Path) -> Path:
    model = folder / "tiny"
    model.mkdir()
    return make_worded_model(model, max_position_embeddings=2 * TINY.context)


@pytest.mark.skipif(not CHAOS_S, reason="CHAOS_S says how long")
@pytest.mark.timeout(3 * CHAOS_S + 600)
async def test_answers_under_chaos_are_those_of_a_quiet_cluster(tmp_path: Path) -> None:
    model = Path(MODEL) if MODEL else tiny_model(tmp_path)
    chance = random.Random(SEED)
    plan = random_plan(chance, SIZE)
    if plan.has_tools:
        model = with_tools(model, tmp_path / "with-tools" / model.name)
    sys.stderr.write(f"SEED={SEED}: {plan}, logs in {tmp_path}\n")
    async with Town(model, tmp_path, plan) as town:
        clients = {one.name: Clients(one.http_port, town.grpc_ports[one.name]) for one in town.masters}
        storm = Storm(town, SEED, clients, SIZE)
        left_s = CHAOS_S
        while left_s > 0 and not storm.failures:
            cases = random_cases(
                chance.randrange(2**32), SIZE.num_cases, SIZE.longest, model.name, has_tools=plan.has_tools
            )
            await storm.round(cases, min(SIZE.round_s, left_s))
            left_s -= SIZE.round_s
            sys.stderr.write(f"{dict(sorted(storm.counts.items()))}\n")
        for one in clients.values():
            await one.close()
        await town.end()
        storm.read_logs()
    assert not storm.failures, f"SEED={SEED}: {len(storm.failures)} failures\n" + "\n\n".join(storm.failures[:20])
