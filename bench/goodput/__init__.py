"""The highest rate of requests at which Sluice keeps its bounds, with prefill and decode on GPUs of their own."""
