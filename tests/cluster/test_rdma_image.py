"""The worker's image with RDMA: UCX finds its verbs, and moves KV without them as the wheel's does."""

import re

import pytest

from tests.cluster.images import build_rdma_worker, run_in

pytestmark = pytest.mark.slow
SCRIPT = "import ucxx; ucxx.init(); print('version', *ucxx.get_ucx_version())"


@pytest.fixture(scope="module")
def image() -> str:
    """Built in a minute where the other image was built."""
    return build_rdma_worker()


def test_ucx_with_rdma_loads_verbs_and_its_drivers(image: str) -> None:
    said = run_in(image, "env", "UCX_LOG_LEVEL=debug", "UCX_TLS=tcp,self", "python", "-c", SCRIPT)
    loaded = set(re.findall(r"loaded /opt/ucx/lib/ucx/lib(uct_\w+)\.so", said))
    assert {"uct_ib", "uct_ib_mlx5", "uct_ib_efa"} <= loaded, said
    assert "--with-verbs" in said
    assert "--with-cuda" in said
    assert "--enable-mt" in said
    assert "version 1 23" in said


def test_libraries_of_nics_are_the_images_own(image: str) -> None:
    linked = run_in(image, "sh", "-c", "ldd /opt/ucx/lib/ucx/libuct_ib_mlx5.so /opt/ucx/lib/ucx/libuct_ib_efa.so")
    assert "not found" not in linked
    assert set(run_in(image, "sh", "-c", "cat /etc/libibverbs.d/*.driver").split("\n")) >= {"driver mlx5", "driver efa"}
