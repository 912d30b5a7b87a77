# Two images: `gateway` (pd_master: no torch, no CUDA) and `worker` (engine, Triton, UCX). Both run as user 10001 on a
# read-only root.
#
#   docker build --target gateway -t sluice/gateway:0.1.0 .
#   docker build --target worker  -t sluice/worker:0.1.0 .
#
# Bases are arguments; any Debian or Ubuntu does. A worker's driver libraries come from the node (NVIDIA's container
# runtime), CUDA's from torch's wheels.
ARG GATEWAY_BASE=docker.io/library/debian:bookworm-slim
ARG WORKER_BASE=docker.io/nvidia/cuda:12.9.1-base-ubuntu24.04

# ---------------------------------------------------------------------------------------------------------------- code
# Sluice itself, the same in both images and a layer of its own: a new version moves a megabyte.
FROM ${GATEWAY_BASE} AS code
RUN command -v python3 >/dev/null && python3 -c 'import ensurepip, venv' || \
    { apt-get update && apt-get install -y --no-install-recommends python3 python3-venv ca-certificates; }
WORKDIR /src
COPY requirements-dev.txt ./
RUN python3 -m venv /opt/build && /opt/build/bin/python -m pip install --no-cache-dir --no-compile \
        "$(grep '^grpcio-tools==' requirements-dev.txt)" "$(grep '^setuptools==' requirements-dev.txt)"
COPY proto proto
COPY pyproject.toml ./
RUN mkdir -p /app/bin && /opt/build/bin/python -m grpc_tools.protoc -Iproto --python_out=/app --grpc_python_out=/app \
        proto/sluice/v1/*.proto && touch /app/sluice/__init__.py /app/sluice/v1/__init__.py && \
    printf '#!/usr/bin/env python3\nimport sys\nfrom services.cli.main import main\nsys.exit(main())\n' >/app/bin/sluice && \
    chmod 755 /app/bin/sluice && version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) && \
    mkdir "/app/sluice-$version.dist-info" && \
    printf 'Metadata-Version: 2.1\nName: sluice\nVersion: %s\n' "$version" >"/app/sluice-$version.dist-info/METADATA"
COPY services /app/services
COPY kernels /app/kernels

# ------------------------------------------------------------------------------------------------------------- gateway
FROM ${GATEWAY_BASE} AS gateway-build
RUN command -v strip >/dev/null && python3 -c 'import ensurepip, venv' || \
    { apt-get update && apt-get install -y --no-install-recommends python3 python3-venv ca-certificates binutils; }
WORKDIR /src
COPY requirements-cpu.txt requirements-gateway.txt ./
# pip stays outside of what is copied on. tokenizers comes alone: what it brings along downloads models (17 MB), and
# pd_master reads tokenizers that workers send. Debugging symbols are half of what is compiled.
RUN python3 -m venv /opt/build && python3 -m venv --without-pip /opt/sluice && \
    pip="/opt/build/bin/python -m pip --python /opt/sluice/bin/python install --no-cache-dir --no-compile" && \
    $pip -r requirements-gateway.txt && $pip --no-deps -c requirements-cpu.txt tokenizers && \
    find /opt/sluice -name '*.so' -exec strip --strip-unneeded {} +

FROM ${GATEWAY_BASE} AS gateway
RUN command -v python3 >/dev/null || \
    { apt-get update && apt-get install -y --no-install-recommends python3 && \
      rm -rf /var/lib/apt/lists/* /var/cache/apt/*; }
COPY --from=gateway-build /opt/sluice /opt/sluice
COPY --from=code /app /app
ENV PATH=/app/bin:/opt/sluice/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 10001:10001
EXPOSE 8000 8001
ENTRYPOINT ["sluice"]
CMD ["pd-master"]

# -------------------------------------------------------------------------------------------------------------- worker
FROM ${WORKER_BASE} AS worker-build
# A torch other than requirements-cpu.txt's, such as torch==2.13.0+cpu for nodes without a GPU.
ARG TORCH=
RUN command -v python3 >/dev/null && python3 -c 'import ensurepip, venv' || \
    { apt-get update && apt-get install -y --no-install-recommends python3 python3-venv ca-certificates; }
WORKDIR /src
COPY requirements-cpu.txt requirements-worker.txt ./
# Headers, static libraries and tests of packages are half of what pip brings; nobody here compiles against them.
RUN python3 -m venv /opt/sluice && pip="/opt/sluice/bin/python -m pip install --no-cache-dir --no-compile" && \
    { [ -z "$TORCH" ] || $pip "$TORCH"; } && $pip -r requirements-worker.txt && \
    cd /opt/sluice/lib/python3.*/site-packages && \
    rm -rf pip* setuptools* torch/include torch/test torch/share */include/rmm && find . -name '*.a' -delete
# UCX with RDMA. PyPI's libucx wheel has shared memory, TCP and CUDA, but no verbs. NIXL's wheel carries NVIDIA's build of
# UCX with CUDA, verbs, mlx5 and EFA: --build-arg UCX=rdma takes it from there. Its libraries are named by hashes and look
# for such names; here they get their own names back, and instead of the two that are NIXL's own copies of rdma-core those
# of this image, which come with the drivers of all NICs.
ARG UCX=wheel
ARG NIXL=nixl-cu12==1.5.1
RUN mkdir -p /opt/ucx/lib/ucx && [ "$UCX" = wheel ] || { \
    [ "$UCX" = rdma ] || { echo "UCX: '$UCX' is not allowed; it takes wheel or rdma" >&2; exit 1; } && \
    python3 -m venv /tmp/pip && /tmp/pip/bin/python -m pip download --no-deps --no-cache-dir -d /tmp/nixl "$NIXL" && \
    python3 -m zipfile -e /tmp/nixl/*.whl /tmp/nixl && from=$(echo /tmp/nixl/nixl_*.libs) && cd /opt/ucx/lib && \
    cp "$from"/libuc[mpst]-*.so.* . && \
    for name in ucm ucp ucs uct; do ln -s lib$name-*.so.* lib$name.so && ln -s lib$name.so lib$name.so.0; done && \
    ln -s libucs.so libucs_signal.so && \
    for name in ibverbs mlx5; do \
        ln -s "/usr/lib/$(uname -m)-linux-gnu/lib$name.so.1" "$(basename "$from"/lib$name-*)"; done && \
    ln -s /opt/sluice/lib/python3.*/site-packages/libucx_cu12.libs/libcudart-*.so.* libcudart.so.12 && cd ucx && \
    for name in ucm_cuda uct_cma uct_cuda uct_ib uct_ib_efa uct_ib_mlx5; do \
        cp "$from/ucx/lib$name.so.0.0.0" . && ln -s lib$name.so.0.0.0 lib$name.so && ln -s lib$name.so lib$name.so.0; done && \
    rm -rf /tmp/pip /tmp/nixl; }

FROM ${WORKER_BASE} AS worker
# gcc and Python's headers: Triton compiles a launcher for each kernel. ibverbs: UCX's RDMA.
ARG WORKER_PACKAGES="gcc libc6-dev python3-dev libibverbs1 ibverbs-providers libgomp1"
RUN command -v python3 >/dev/null || WORKER_PACKAGES="python3 $WORKER_PACKAGES"; \
    if [ -n "$WORKER_PACKAGES" ]; then \
        apt-get update && apt-get install -y --no-install-recommends $WORKER_PACKAGES && \
        rm -rf /var/lib/apt/lists/* /var/cache/apt/*; fi
COPY --from=worker-build /opt/sluice /opt/sluice
COPY --from=worker-build /opt/ucx /opt/ucx
COPY --from=code /app /app
# A UCX in /opt/ucx, where there is one, goes before the wheel's.
ENV PATH=/app/bin:/opt/sluice/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PYTHONPATH=/app \
    LD_LIBRARY_PATH=/opt/ucx/lib RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    TRITON_CACHE_DIR=/cache/triton \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 10001:10001
EXPOSE 9000 9001
ENTRYPOINT ["sluice"]
CMD ["--help"]
