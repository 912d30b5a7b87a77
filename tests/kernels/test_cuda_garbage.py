"""What steps of the cuda backend leave to the garbage collector, which the engine's process turns off: nothing."""

from pathlib import Path

from services.common.request import SamplingParams
from tests.engine.driver import GREEDY
from tests.engine.garbage import left_in_cycles, shown
from tests.engine.tiny import make_model, prompt_of
from tests.kernels.conftest import HAS_CARD, Engines

STEPS = 20 if HAS_CARD else 3  # interpreted steps take seconds
SAMPLINGS = (GREEDY, SamplingParams(temperature=0.8, top_p=0.9), SamplingParams(presence_penalty=0.2, num_logprobs=2))


def test_steps_leave_nothing(engine: Engines, tmp_path: Path) -> None:
    driver = engine(make_model("llama", tmp_path, num_hidden_layers=1), max_running_requests=3)

    def serve() -> None:
        driver.run(*(driver.admit(prompt_of(12), STEPS, sampling=each) for each in SAMPLINGS))

    left = [each for each in left_in_cycles(serve) if HAS_CARD or _is_ours(each)]
    assert len(left) < (STEPS if HAS_CARD else 1), shown(left)


def _is_ours(left: object) -> bool:
    """The interpreter leaves some of its own for each launch."""
    names = (getattr(each, "__module__", None) for each in (left, type(left)))
    return any(name.startswith(("services", "kernels")) for name in names if isinstance(name, str))
