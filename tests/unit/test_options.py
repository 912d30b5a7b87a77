"""Options are read once, whole, and anything that cannot be is refused with the key and what is allowed."""

import dataclasses
from typing import Literal

import pytest

from services.common.options import ConfigError, HelpRequested, Options, as_flags, option, read
from services.common.options_help import render_help


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lamp(Options):
    name: str = option(help="what it is called", group="model")
    colour: Literal["red", "green"] = option("red", "its light", group="model")
    max_watts: int = option(10, "its power", group="limits", minimum=1, maximum=100)
    dim: float | None = option(None, "its share of light", group="limits", minimum=0.0)
    lit: bool = option(True, "whether it is on", group="limits")
    rooms: tuple[str, ...] = option((), "where it hangs", group="limits")


def test_flag_wins_over_variable_and_variable_over_default() -> None:
    env = {"SLUICE_NAME": "env", "SLUICE_MAX_WATTS": "20", "SLUICE_LIT": "off", "PATH": "/bin"}
    lamp = read(Lamp, ["--name", "flag"], env)
    assert lamp == Lamp(name="flag", max_watts=20, lit=False)


def test_both_spellings_of_flags_are_read() -> None:
    lamp = read(Lamp, ["--name=a=b", "--max-watts", "5", "--no-lit", "--rooms=hall, attic", "--dim=0.5"], {})
    assert lamp == Lamp(name="a=b", max_watts=5, lit=False, rooms=("hall", "attic"), dim=0.5)
    assert read(Lamp, ["--name=a", "--lit"], {}).lit
    assert not read(Lamp, ["--name=a", "--lit=off"], {}).lit


@pytest.mark.parametrize(
    ("argv", "env", "message"),
    [
        (["--nam=a"], {}, "unknown option --nam; did you mean --name?"),
        (["--no-name"], {}, "unknown option --no-name"),
        (["--no-lit=1"], {}, "--no-lit takes no value; --lit takes true or false"),
        (["--max_watts=1"], {}, "unknown option --max_watts; did you mean --max-watts?"),
        (["a"], {}, "'a' is no option: options begin with --"),
        (["--name"], {}, "--name needs a value"),
        ([], {}, "--name (or SLUICE_NAME) must be given: what it is called"),
        (["--name=a", "--max-watts=x"], {}, "--max-watts: 'x' is not allowed; it takes a whole number from 1 to 100"),
        (["--name=a", "--max-watts=0"], {}, "SLUICE_MAX_WATTS): 0 is not allowed; it takes a whole number from 1 to"),
        (["--name=a", "--dim=nan"], {}, "--dim (SLUICE_DIM): nan is not allowed; it takes a number of at least 0"),
        (["--name=a", "--lit=maybe"], {}, "--lit: 'maybe' is not allowed; it takes true or false"),
        (["--name=a"], {"SLUICE_COLOUR": "blue"}, "'blue' is not allowed; it takes one of red, green"),
        (
            ["--name=a"],
            {"SLUICE_MAX_WATT": "1"},
            "unknown environment variable SLUICE_MAX_WATT; did you mean SLUICE_MAX_",
        ),
    ],
)
def test_mistake_is_refused_with_its_key(argv: list[str], env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(Lamp, argv, env)
    assert message in str(error.value)


def test_no_guess_is_made_at_a_variable_that_has_only_the_prefix_in_common() -> None:
    with pytest.raises(ConfigError) as error:
        read(Lamp, ["--name=a"], {"SLUICE_FAN": "1"})
    assert "did you mean" not in str(error.value)


def test_variable_of_another_command_is_let_pass() -> None:
    assert (
        read(Lamp, ["--name=a"], {"SLUICE_OTHER": "1", "SLUICE_CACHE": "/x"}, also_known=["SLUICE_OTHER"]).name == "a"
    )


def test_bounds_hold_for_a_config_made_in_code_too() -> None:
    with pytest.raises(ConfigError, match="SLUICE_MAX_WATTS"):
        Lamp(name="a", max_watts=101)


@pytest.mark.parametrize(
    "lamp", [Lamp(name="a"), Lamp(name="-x", colour="green", max_watts=1, dim=0.25, lit=False, rooms=("a", "b"))]
)
def test_flags_of_a_config_read_back_as_the_same(lamp: Lamp) -> None:
    assert read(Lamp, as_flags(lamp), {}) == lamp


def test_help_names_each_option_with_default_and_variable() -> None:
    with pytest.raises(HelpRequested):
        read(Lamp, ["--help"], {})
    text = render_help(Lamp, "lamp", "Shines.")
    for part in (
        "--colour red|green",
        "(required)",
        "(default: red) [SLUICE_COLOUR]",
        "--lit, --no-lit",
        "default: on",
    ):
        assert part in text
