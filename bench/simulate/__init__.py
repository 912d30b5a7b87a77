"""A cluster in simulated time: the real Router, selector and length prediction over a cost model of the engine."""
