"""One engine process from its configuration to its exit status; `main` is its entry."""

import gc
import logging
import sys

from services.common.log import configure_logging
from services.common.options import EXIT_USAGE
from services.engine.agreement import RankLostError
from services.engine.channel import Channel
from services.engine.config import ConfigError, EngineConfig, config_from_argv
from services.engine.lifeline import ControlProcessLostError, Lifeline
from services.engine.load import load_model
from services.engine.loop import Engine
from services.engine.ranks import Ranks
from services.engine.serving import follow, serve
from services.engine.transfer_setup import open_transfer

log = logging.getLogger("services.engine")


def run_process(arguments: list[str]) -> int:
    """Run one engine to its end; returns the exit status that `main` documents."""
    configure_logging("engine")
    sys.setswitchinterval(1e-4)  # the default of 5 ms is longer than a step
    try:
        config = config_from_argv(arguments)
        name = f"{config.worker_id} engine" if config.num_ranks == 1 else f"{config.worker_id} rank {config.rank}"
        configure_logging(name, level=config.log_level, format=config.log_format)
        run(config, Lifeline(sys.stdin.fileno() if arguments == ["-"] else None))
    except ConfigError as error:
        log.error("%s", error)  # noqa: TRY400  the message is for a person; a traceback would bury it
        return EXIT_USAGE
    except (ControlProcessLostError, RankLostError) as error:
        log.error("ending: %s", error)  # noqa: TRY400
        return 1
    except Exception:  # the process's main: die once, loudly
        log.exception("the engine failed")
        return 1
    return 0


def run(config: EngineConfig, lifeline: Lifeline) -> None:
    """Load the model, connect to the control process and serve it until Shutdown or the end of `lifeline`."""
    ranks = _serve(config, lifeline)
    gc.unfreeze()
    gc.collect()  # graphs that hold sums of NCCL's go before NCCL does: it would wait for them
    ranks.close()


def _serve(config: EngineConfig, lifeline: Lifeline) -> Ranks:
    model = load_model(config)
    transfer = open_transfer(config, model)
    try:
        engine = Engine(config, model, transfer)
        if model.runner.backend.name == "cuda":  # small machines save the memory until somebody wants a grammar
            engine.state.grammars.warm()
        wake = [] if transfer is None else [transfer.wake_fd]
        others = model.ranks.agreement.socket
        if others is not None and config.rank > 0:
            follow(engine, others, wake, lifeline)
        else:
            with Channel(config.endpoint, [*wake, *(() if others is None else (others,))], lifeline) as channel:
                serve(engine, channel)
    finally:
        if transfer is not None:
            transfer.close()
    return model.ranks
