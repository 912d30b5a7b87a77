"""Ports for processes that are told theirs before they bind it: nobody else gets them in between."""

import socket
import subprocess
import sys

from services.common import ports as product
from tests import ports

OTHER = [sys.executable, "-c", "from tests.ports import free_ports; print(*free_ports(3), flush=True); input()"]


def test_ports_are_distinct_and_none_is_given_to_connections() -> None:
    own = ports.free_ports(40) + ports.free_ports(40)
    assert len(set(own)) == 80
    for found in (own, product.free_ports(40)):
        assert not set(found) & set(product.outgoing_ports())


def test_a_port_that_somebody_has_is_not_free() -> None:
    (port,) = ports.free_ports(1)
    assert product.is_free(port)
    with socket.create_server((product.LOOPBACK, port)):
        assert not product.is_free(port)


def test_test_processes_that_run_at_once_have_different_ports() -> None:
    others = [subprocess.Popen(OTHER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    theirs = [other.stdout.readline().split() for other in others if other.stdout is not None]
    for other in others:
        other.communicate("\n")
    assert len({*map(str, ports.free_ports(3)), *theirs[0], *theirs[1]}) == 9


def test_where_connections_may_get_any_port_there_are_ports_all_the_same() -> None:
    assert len(ports.blocks_outside(range(1024, 65_536))) > 100
    assert all(block[-1] < 32_768 for block in ports.blocks_outside(range(32_768, 65_536)))
