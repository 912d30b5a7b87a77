"""Outputs under a grammar: whatever the model would like to say, only what the grammar allows comes out.

The model is tiny and random, so what is valid in its output the masks alone have made so.
"""

import json
import os
import re
from pathlib import Path

import jsonschema_rs
import pytest
import torch
import xgrammar

from services.common import ipc
from services.common.request import FinishReason, GrammarKind, GrammarSpec, SamplingParams
from services.common.text import Vocabulary
from services.engine.cpu_masks import cpu_masks
from services.engine.grammar_compiler import GrammarCompiler
from services.pd_master.grammars.source import schema_grammar
from tests.engine.driver import Driver
from tests.engine.schemas import random_schema
from tests.engine.tiny import make_worded_model

NUM_SCHEMAS = int(os.environ.get("NUM_SCHEMAS", "30"))
"""Random schemas to try; a full run takes 200."""
PROMPT = (5, 6, 7, 8)


def spec(kind: GrammarKind, source: str) -> GrammarSpec:
    return GrammarSpec(kind, source)


def schema_spec(schema: object) -> GrammarSpec:
    """As the gateway makes it."""
    return schema_grammar(schema, "schema")


@pytest.fixture(scope="module")
def worded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_worded_model(tmp_path_factory.mktemp("worded"))


class Bench:
    """An engine whose tokens have text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.driver = Driver(folder, num_kv_tokens=8192)
        self.eos = self.driver.engine.ready().eos_token_ids[0]
        pieces = Vocabulary.load(folder).visible_pieces
        assert pieces is not None
        self.pieces = pieces

    def admit(self, grammar: GrammarSpec, seed: int = 0, max_new_tokens: int = 250, **changes: object) -> ipc.Admit:
        sampling = SamplingParams(seed=seed, grammar=grammar)
        return self.driver.admit(PROMPT, max_new_tokens, sampling=sampling, stop_token_ids=(self.eos,), **changes)

    def text(self, job_id: int, choice: int = 0) -> str:
        return self.text_of(self.driver.tokens[job_id, choice])

    def text_of(self, ids: list[int]) -> str:
        return b"".join(self.pieces[token] for token in ids if token < len(self.pieces)).decode(errors="replace")

    def rest(self, *commands: ipc.Command) -> None:
        """Run with the patience that compiling in threads takes."""
        self.driver.turn(*commands)
        while self.driver.engine.has_work:
            self.driver.turn()


@pytest.fixture(scope="module")
def bench(worded: Path) -> Bench:
    return Bench(worded)


def test_sampled_json_is_valid_against_random_schemas(bench: Bench) -> None:
    commands = {}
    for seed in range(NUM_SCHEMAS):
        admit = bench.admit(schema_spec(random_schema(seed)), seed)
        commands[admit.job_id] = random_schema(seed)
        bench.driver.turn(admit)
        if seed % 25 == 24:  # fewer than the engine's rows at once
            bench.rest()
    bench.rest()
    ended = 0
    for job_id, schema in commands.items():
        if bench.driver.finishes[job_id, 0] is FinishReason.LENGTH:
            continue
        ended += 1
        text = bench.text(job_id)
        errors = jsonschema_rs.iter_errors(schema, json.loads(text), validate_formats=True)
        problems = [error.message for error in errors]
        assert not problems, f"{json.dumps(schema)}\n{text}"
    assert ended >= 0.8 * NUM_SCHEMAS
    bench.driver.check()


def test_choices_of_one_prompt_obey_alone(bench: Bench) -> None:
    admit = bench.admit(spec(GrammarKind.REGEX, r"[ab]{3}-\d+!"), 3, choices=(0, 1, 2, 3))
    bench.rest(admit)
    texts = {bench.text(admit.job_id, choice) for choice in range(4)}
    assert len(texts) > 1
    assert all(re.fullmatch(r"[ab]{3}-\d+!", text) for text in texts)


def test_greedy_rows_are_masked_too(bench: Bench) -> None:
    grammar = spec(GrammarKind.EBNF, 'root ::= "left" | "right"')
    sampling = SamplingParams(temperature=0.0, grammar=grammar)
    admit = bench.driver.admit(PROMPT, 20, sampling=sampling, stop_token_ids=(bench.eos,))
    bench.rest(admit)
    assert bench.text(admit.job_id) in {"left", "right"}


def test_rows_without_a_grammar_beside_are_not_touched(bench: Bench) -> None:
    free = [SamplingParams(seed=5), SamplingParams(temperature=0.0), SamplingParams(temperature=0.0, num_logprobs=2)]
    alone = [bench.driver.admit(PROMPT, 12, sampling=sampling) for sampling in free]
    bench.rest(*alone)
    grammar = spec(GrammarKind.REGEX, "[xyz]{12}")
    beside = [bench.driver.admit(PROMPT, 12, sampling=sampling) for sampling in free]
    bound = [bench.admit(grammar, seed) for seed in range(2)]
    bench.rest(beside[0], bound[0], *beside[1:], bound[1])
    tokens = bench.driver.tokens
    assert [tokens[one.job_id, 0] for one in beside] == [tokens[one.job_id, 0] for one in alone]
    assert all(re.fullmatch("[xyz]{12}", bench.text(one.job_id)) for one in bound)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_output_whose_grammar_allows_no_token_ends(bench: Bench, temperature: float) -> None:
    grammar = spec(GrammarKind.REGEX, r"a[^\x00-\U0010ffff]")
    sampling = SamplingParams(temperature=temperature, seed=1, grammar=grammar)
    dead = bench.driver.admit(PROMPT, 20, sampling=sampling, stop_token_ids=(bench.eos,))
    beside = bench.admit(spec(GrammarKind.REGEX, "[xyz]{12}"))
    bench.rest(dead, beside)
    assert bench.driver.tokens[dead.job_id, 0][1:] == [bench.eos]
    assert bench.text_of(bench.driver.tokens[dead.job_id, 0][:1]) == "a"
    assert bench.driver.finishes[dead.job_id, 0] is FinishReason.STOP
    assert re.fullmatch("[xyz]{12}", bench.text(beside.job_id))
    bench.driver.check()


def test_an_output_that_left_its_grammar_ends(bench: Bench) -> None:
    """As one does that was drawn against it, by an engine that had another grammar."""
    left = bench.admit(spec(GrammarKind.REGEX, "[xyz]{12}"), output_ids=ipc.pack_ids([bench.pieces.index(b"a")]))
    bench.rest(left)
    assert bench.driver.tokens[left.job_id, 0] == [bench.eos]
    assert bench.driver.finishes[left.job_id, 0] is FinishReason.STOP
    bench.driver.check()


@pytest.mark.parametrize("vocab_size", [64, 211])
def test_masks_on_the_cpu_are_the_compilers_own(vocab_size: int) -> None:
    torch.manual_seed(0)
    words = torch.randint(-(2**31), 2**31 - 1, (3, (vocab_size + 31) // 32), dtype=torch.int64).to(torch.int32)
    logits = torch.randn(3, vocab_size)
    words[1] = 0
    words[1, 1] = 6  # two tokens, so that a row allows little
    theirs, ours = logits.clone(), logits.clone()
    xgrammar.apply_token_bitmask_inplace(theirs, words)
    masks = cpu_masks(words, [0, 1, 2], vocab_size)
    masks.apply(ours)
    assert (masks.dense, masks.sparse.tolist()) == ([0, 2], [1])
    assert torch.equal(theirs, ours)
    assert theirs[1].isfinite().sum() == 2


def test_rows_without_a_grammar_keep_their_logits_on_the_cpu() -> None:
    logits = torch.randn(3, 64)
    words = torch.full((3, 2), -1, dtype=torch.int32)
    words[2] = 0
    masked = logits.clone()
    cpu_masks(words, [2], 64).apply(masked)
    assert torch.equal(masked[:2], logits[:2])
    assert masked[2].isinf().all()


def test_a_structural_tag_may_name_special_tokens(bench: Bench) -> None:
    mark = bench.eos - 1
    form = {"type": "sequence", "elements": [{"type": "token", "token": mark}, {"type": "const_string", "value": "ok"}]}
    tag = {"type": "structural_tag", "format": form}
    admit = bench.admit(spec(GrammarKind.STRUCTURAL_TAG, json.dumps(tag)))
    bench.rest(admit)
    assert bench.driver.tokens[admit.job_id, 0][0] == mark
    assert bench.text(admit.job_id) == "ok"


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_a_new_attempt_continues_as_the_old_one(bench: Bench, worded: Path, cut: int) -> None:
    grammar = schema_spec(random_schema(4))
    whole = bench.admit(grammar, 11)
    bench.rest(whole)
    expected = bench.driver.tokens[whole.job_id, 0]
    other = Bench(worded)
    again = other.admit(grammar, 11, output_ids=ipc.pack_ids(expected[:cut]))
    other.rest(again)
    assert other.driver.tokens[again.job_id, 0] == expected[cut:]


def test_preempted_sequences_stay_valid(worded: Path) -> None:
    small = Bench(worded)
    small.driver = driver = Driver(worded, num_kv_tokens=160)
    grammar = spec(GrammarKind.REGEX, r"([a-d]{5},){15}")
    todo = [small.admit(grammar, seed) for seed in range(3)]
    runs = {seed: [admit] for seed, admit in enumerate(todo)}
    seen = 0
    while todo or driver.engine.has_work:
        at = len(driver.events)
        driver.turn(*todo)
        again = {event.job_id for event in driver.events[at:] if isinstance(event, ipc.Deferred)}
        todo = [admit for admit in todo if admit.job_id in again]
        lost = {event.job_id for event in driver.events[at:] if isinstance(event, ipc.Preempted)}
        for seed, jobs in runs.items():
            if jobs[-1].job_id in lost:
                seen += 1
                ids = [token for job in jobs for token in driver.tokens[job.job_id, 0]]
                jobs.append(small.admit(grammar, seed, output_ids=ipc.pack_ids(ids)))
                todo.append(jobs[-1])
    assert seen, "nothing was preempted"
    texts = ["".join(small.text(job.job_id) for job in jobs) for jobs in runs.values()]
    assert all(re.fullmatch(r"([a-d]{5},){15}", text) for text in texts), texts


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        (spec(GrammarKind.REGEX, "(a"), "parenthesis"),
        (spec(GrammarKind.EBNF, "root ::= other"), "not defined"),
        (spec(GrammarKind.JSON_SCHEMA, '{"type": "objekt"}'), "objekt"),
        (spec(GrammarKind.STRUCTURAL_TAG, '{"type": "structural_tag"}'), "format"),
    ],
)
def test_a_grammar_that_cannot_be_compiled_is_refused_by_itself(bench: Bench, grammar: GrammarSpec, why: str) -> None:
    bad, good = bench.admit(grammar), bench.driver.admit(PROMPT, 5)
    bench.rest(bad, good)
    refusal = bench.driver.said(ipc.GrammarRefused)[-1]
    assert refusal.job_id == bad.job_id
    assert why in refusal.message
    assert bench.driver.events.index(refusal) < bench.driver.events.index(ipc.Ended(bad.job_id))
    assert len(bench.driver.tokens[good.job_id, 0]) == 5
    assert not bench.driver.tokens[bad.job_id, 0]
    bench.driver.check()


ANY_TREE = '{"type": "object", "properties": {"tree": {"type": "string"}}}'
TREES = [
    (GrammarKind.JSON_SCHEMA, ANY_TREE, 32),
    (GrammarKind.STRUCTURAL_TAG, '{"type": "json_schema", "json_schema": %s}', 32),
    (GrammarKind.STRUCTURAL_TAG, '{"type": "json_schema", "json_schema": %s, "max_whitespace_cnt": 3}', 3),
    (GrammarKind.STRUCTURAL_TAG, '{"type": "or", "elements": [{"type": "json_schema", "json_schema": %s}]}', 32),
]


@pytest.mark.parametrize(("kind", "source", "most"), TREES)
def test_json_cannot_be_padded_for_ever(bench: Bench, kind: GrammarKind, source: str, most: int) -> None:
    if kind is GrammarKind.STRUCTURAL_TAG:
        source = f'{{"type": "structural_tag", "format": {source % ANY_TREE}}}'
    compiler = GrammarCompiler(bench.folder, len(bench.pieces), (bench.eos,))
    matcher = compiler.compile(spec(kind, source)).matcher()
    assert matcher.accept_string("{" + most * " ")
    assert not matcher.accept_string(" ")
    assert matcher.accept_string('"tree"')


def test_a_model_without_a_tokenizer_refuses_grammars(llama: Path) -> None:
    driver = Driver(llama)
    admit = driver.admit(PROMPT, 5, sampling=SamplingParams(grammar=spec(GrammarKind.REGEX, "a")))
    driver.turn(admit)
    while driver.engine.has_work:
        driver.turn()
    assert "tokenizer" in driver.said(ipc.GrammarRefused)[0].message
    driver.check()
