"""The size check finds what is too long, counts no docstring, and takes a stated reason."""

from tools.check_sizes import FILES, FUNCTIONS, Measured, faults, measure_file


def _function(num_lines: int, head: str = "") -> str:
    return "def f():\n" + head + "    x = 1\n" * (num_lines - 1 - head.count("\n"))


def test_function_over_the_limit_is_a_fault() -> None:
    _, functions = measure_file("a.py", _function(51))
    assert functions == [Measured("a.py:1 f", 51, False)]
    assert "a.py:1 f: 51 lines, at most 50" in list(faults("code", FUNCTIONS, functions))


def test_docstring_does_not_count() -> None:
    docstring = '    """Say.\n' + "    more\n" * 30 + '    """\n'
    _, functions = measure_file("a.py", _function(40, docstring))
    assert functions[0].num_lines == 40 - 32


def test_stated_reason_excuses_a_long_function_but_not_its_file() -> None:
    file, functions = measure_file("a.py", _function(401, "    # size: one table, read from top to bottom\n"))
    assert functions[0].excused
    assert not file.excused
    assert "a.py: 401 lines, at most 400" in list(faults("code", FILES, [file]))


def test_nested_functions_and_methods_are_measured() -> None:
    _, functions = measure_file("a.py", "class A:\n    def m(self):\n        def inner():\n            pass\n")
    assert [one.where for one in functions] == ["a.py:2 m", "a.py:3 inner"]


def test_too_many_middling_files_are_a_fault() -> None:
    files = [Measured(f"{i}.py", 120 if i < 6 else 20, False) for i in range(10)]
    (fault,) = faults("code", FILES, files)
    assert "4 of 10 files are under 100 lines, 50% should be" in fault


def test_everything_small_is_no_fault() -> None:
    assert list(faults("code", FILES, [Measured("a.py", 99, False)])) == []
