"""The gateway: HTTP and gRPC in, one prefill and one decode worker chosen for each request, deltas out."""
