"""How a worker names itself."""

import pytest

from services.common.config import WorkerConfig
from services.worker.identity import MAX_ID_BYTES, identify


def config(**values: object) -> WorkerConfig:
    return WorkerConfig(model="m", role="decode", **values)  # type: ignore[arg-type]


def test_the_same_address_keeps_its_id_and_a_new_start_gets_a_new_incarnation() -> None:
    one, two = (identify(config(host="127.0.0.1"), 7000) for _ in range(2))
    assert one.ref.worker_id == two.ref.worker_id == "decode-127.0.0.1:7000"
    assert one.ref.incarnation != two.ref.incarnation


@pytest.mark.parametrize(
    ("advertised", "address"), [("pod-3.workers:81", "pod-3.workers:81"), ("[fd00::7]:81", "[fd00::7]:81")]
)
def test_an_advertised_address_is_what_others_get(advertised: str, address: str) -> None:
    assert identify(config(advertise_address=advertised), 7000).grpc_address == address


def test_a_worker_that_listens_everywhere_names_one_address() -> None:
    assert not identify(config(host="0.0.0.0"), 7000).grpc_address.startswith("0.0.0.0")


def test_a_long_name_is_bounded_and_stays_distinct() -> None:
    names = [identify(config(advertise_address=f"{'pod.' * 30}{end}:1"), 0).ref.worker_id for end in ("a", "b")]
    assert all(len(name.encode()) <= MAX_ID_BYTES for name in names)
    assert names[0] != names[1]
