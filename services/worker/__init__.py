"""What prefill and decode workers share in their control process: engine, sessions to masters, text, health."""

import os

# gRPC's handlers around fork are for children that go on using it; ours becomes the engine at once. Read at its import.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
