"""What flags of vLLM, SGLang and LightLLM are called here, for who types them by habit; docs/migrating.md has more."""

from types import MappingProxyType

_OURS = {
    "--model": "--model-path --model_dir",
    "--served-model-name": "--model_name",
    "--dtype": "--data_type",
    "--tp": "--tensor-parallel-size -tp --tp-size --tensor_parallel_size",
    "--max-context-tokens": "--max-model-len --context-length --max_req_total_len",
    "--max-running-requests": "--max-num-seqs --running_max_req_size",
    "--kv-memory-fraction": "--gpu-memory-utilization --mem-fraction-static --mem_fraction",
    "--kv-pool-tokens": "--max-total-tokens --max_total_token_num",
    "--chunk-tokens": "--max-num-batched-tokens --chunked-prefill-size --chunked_prefill_size --batch_max_tokens",
    "--host-cache-gib": "--kv-offloading-size --hicache-size",
    "--no-prefix-cache": "--no-enable-prefix-caching --disable-radix-cache --disable_dynamic_prompt_cache",
    "--max-queue": "--max-queued-requests",
    "--http-port": "--port -p",
    "--api-keys-file": "--api-key",
    "--tls-cert-file": "--ssl-certfile",
    "--tls-key-file": "--ssl-keyfile",
    "--otlp-endpoint": "--otlp-traces-endpoint --oltp-traces-endpoint",
}
NAMES_ELSEWHERE = MappingProxyType({theirs: ours for ours, names in _OURS.items() for theirs in names.split()})
"""Their flag -> ours."""
