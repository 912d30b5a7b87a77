"""The fault tests run on the integration tests' clusters and oracle."""

from tests.integration.conftest import log_dir, model_dir, oracle

__all__ = ["log_dir", "model_dir", "oracle"]
