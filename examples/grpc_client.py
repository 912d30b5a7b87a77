"""Stream a chat from Sluice over gRPC.

    PYTHONPATH=gen python examples/grpc_client.py 127.0.0.1:8001 "What is the capital of France?"

It needs `pip install grpcio protobuf` and the stubs of `proto/sluice/v1`, which `make gen` writes to gen/. With API
keys, KEY=... in the environment. Under TLS, CA=ca.pem; for mutual TLS also CERT=client.pem and CERT_KEY=client.key.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc

from sluice.v1 import gateway_pb2, gateway_pb2_grpc

TIMEOUT_S = 120


def connect(address: str) -> grpc.Channel:
    """A channel to pd_master's gRPC port, under TLS where CA is set."""
    ca, cert, key = (os.environ.get(name) for name in ("CA", "CERT", "CERT_KEY"))
    if ca is None:
        return grpc.insecure_channel(address)
    own = (Path(key).read_bytes(), Path(cert).read_bytes()) if key and cert else (None, None)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(Path(ca).read_bytes(), *own))


def chat(stub: gateway_pb2_grpc.GatewayServiceStub, question: str) -> Iterator[str]:
    """Pieces of the answer as they come. Raises grpc.RpcError; its status says why, its details which field."""
    request = gateway_pb2.ChatRequest(messages=[gateway_pb2.ChatMessage(role="user", content=question)])
    request.stop.max_new_tokens = 64
    metadata = (("authorization", f"Bearer {os.environ['KEY']}"),) if "KEY" in os.environ else ()
    for response in stub.Chat(request, timeout=TIMEOUT_S, metadata=metadata):
        for delta in response.deltas:
            yield delta.text


def main(address: str, question: str) -> None:
    """Print the models, then the answer as it is made."""
    with connect(address) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        models = stub.ListModels(gateway_pb2.ListModelsRequest(), timeout=TIMEOUT_S).models
        print(f"models: {', '.join(model.name for model in models)}", file=sys.stderr)
        for piece in chat(stub, question):
            print(piece, end="", flush=True)
        print()


if __name__ == "__main__":
    main(*sys.argv[1:])
