"""The GID index is the one a person would choose from `show_gids`."""

import os
import socket
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest

from services.cli.rdma_gid import find_index, own_addresses, read_table

LINK_LOCAL = "fe80:0000:0000:0000:ba59:9fff:fe00:0001"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a00:0005"  # 10.0.0.5
OTHER_IPV4 = "0000:0000:0000:0000:0000:ffff:c0a8:0001"
OWN = {ip_address("10.0.0.5"), ip_address("127.0.0.1"), ip_address("fe80::ba59:9fff:fe00:1")}
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
USUAL = [
    (LINK_LOCAL, "IB/RoCE v1"), (LINK_LOCAL, "RoCE v2"), (IPV4, "IB/RoCE v1"), (IPV4, "RoCE v2"), (EMPTY, None),
]  # fmt: skip


def port(root: Path, device: str, entries: list[tuple[str, str | None]], link_layer: str = "Ethernet") -> None:
    """Lay out a port as sysfs does; a type of None is one that cannot be read."""
    folder = root / device / "ports" / "1"
    (folder / "gids").mkdir(parents=True)
    (folder / "gid_attrs" / "types").mkdir(parents=True)
    (folder / "link_layer").write_text(link_layer + "\n")
    for index, (gid, kind) in enumerate(entries):
        (folder / "gids" / str(index)).write_text(gid + "\n")
        if kind is not None:
            (folder / "gid_attrs" / "types" / str(index)).write_text(kind + "\n")


def test_roce_v2_entry_of_the_own_address_wins(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", [*USUAL[:2], (OTHER_IPV4, "RoCE v2"), (IPV4, "IB/RoCE v1"), (IPV4, "RoCE v2")])
    assert find_index(tmp_path, "mlx5_0:1", OWN)[0] == 4
    assert find_index(tmp_path, "mlx5_0:1", set())[0] == 2


def test_address_of_another_pod_on_a_shared_card_is_passed_over(tmp_path: Path) -> None:
    """Kubernetes knows the pod by 10.244.0.7; its interface on the RDMA network is 10.0.0.5, the card's third."""
    port(tmp_path, "mlx5_0", [(OTHER_IPV4, "RoCE v2"), (LINK_LOCAL, "RoCE v2"), (IPV4, "RoCE v2")])
    assert find_index(tmp_path, "mlx5_0:1,eth0", OWN | {ip_address("10.244.0.7")})[0] == 2


def test_own_addresses_are_those_of_all_interfaces() -> None:
    listed = {
        ip_address(one.address.partition("%")[0])
        for found in psutil.net_if_addrs().values()
        for one in found
        if one.family in {socket.AF_INET, socket.AF_INET6}
    }
    assert ip_address("127.0.0.1") in listed
    assert listed <= own_addresses()


def test_link_local_is_the_last_resort_and_version_1_none(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", USUAL[:2])
    assert find_index(tmp_path, None, OWN)[0] == 1
    port(tmp_path, "mlx5_1", USUAL[:1])
    assert find_index(tmp_path, "mlx5_1:1", OWN) == (None, "mlx5_1:1: no RoCE v2 entry")


def test_infiniband_needs_no_index(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", USUAL, "InfiniBand")
    assert find_index(tmp_path, None, set()) == (None, "no RoCE port: InfiniBand needs no GID index")


def test_ports_that_differ_are_left_to_a_person(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", USUAL)
    port(tmp_path, "mlx5_1", USUAL[2:])
    index, why = find_index(tmp_path, None, OWN)
    assert index is None
    assert "rdma.gidIndex" in why
    assert find_index(tmp_path, "mlx5_1:1", OWN)[0] == 1


def test_unreadable_entries_are_left_out(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", USUAL)
    assert [gid.position for gid in read_table(tmp_path / "mlx5_0" / "ports" / "1")] == [0, 1, 2, 3]


@pytest.mark.parametrize("given", [None, "7"])
def test_command_runs_with_the_variable_that_was_given(given: str | None) -> None:
    env = os.environ | ({} if given is None else {"UCX_IB_GID_INDEX": given})
    command = [sys.executable, "-c", "import os; print(os.environ.get('UCX_IB_GID_INDEX'))"]
    done = subprocess.run(
        [sys.executable, "-m", "services.cli.rdma_gid", *command], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(given)
