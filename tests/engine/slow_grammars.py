"""The engine's own main with a compiler of grammars that takes longer than any test."""

import runpy
import time

from services.engine import grammar_compiler


class SlowCompiler:
    """In the compiler's place; making it takes for ever, as importing and compiling may on a busy machine."""

    def __init__(self, *_: object) -> None:
        time.sleep(600)


if __name__ == "__main__":
    grammar_compiler.GrammarCompiler = SlowCompiler  # type: ignore[assignment,misc]
    runpy.run_module("services.engine.main", run_name="__main__")
