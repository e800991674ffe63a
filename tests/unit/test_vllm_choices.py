"""What vLLM is asked about choices, and what their log-probabilities are made of."""

from __future__ import annotations

import math
import random

import pytest

from mgpu_magic.engines.vllm_choices import Fork, Plan


def invented(prefix: tuple[int, ...], token: int) -> float:
    """A log-probability of the token after these, the same each time."""
    return -random.Random(hash((prefix, token))).random()


def sums(plan: Plan) -> list[float]:
    """The sums of a plan that is answered by `invented`."""
    return plan.sums(
        [{token: invented(fork.prefix, token) for token in fork.following} for fork in plan.forks]
    )


def test_choices_of_one_token_are_one_question() -> None:
    """A, B, C or D costs one forward pass."""
    plan = Plan.of([[5], [6], [7], [8]], width=128)
    assert plan.forks == (Fork((), (5, 6, 7, 8)),)
    assert plan.sums([{5: -1.0, 6: -2.0, 7: -3.0, 8: -4.0}]) == [-1.0, -2.0, -3.0, -4.0]


def test_shared_beginnings_are_asked_once() -> None:
    """What several choices begin with is one question for all of them."""
    plan = Plan.of([[1, 2, 3], [1, 2, 4], [5]], width=128)
    assert plan.forks == (Fork((), (1, 5)), Fork((1,), (2,)), Fork((1, 2), (3, 4)))
    assert plan.sums([{1: -1.0, 5: -2.0}, {2: -10.0}, {3: -100.0, 4: -200.0}]) == [
        -111.0,
        -211.0,
        -2.0,
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_a_choice_may_be_the_beginning_of_another(order: int) -> None:
    """The shorter one ends where the longer one goes on; whichever comes first."""
    plan = Plan.of([[1], [1, 2]][::order], width=128)
    assert plan.forks == (Fork((), (1,)), Fork((1,), (2,)))
    assert plan.sums([{1: -1.0}, {2: -10.0}]) == [-1.0, -11.0][::order]


def test_choices_of_the_same_tokens_weigh_the_same() -> None:
    """Two texts that a tokenizer cannot tell apart are asked once and both have their value."""
    plan = Plan.of([[1, 2], [1, 2]], width=128)
    assert plan.sums([{1: -1.0}, {2: -10.0}]) == [-11.0, -11.0]


def test_many_followers_are_several_questions() -> None:
    """One request of vLLM has a limit; more tokens are asked for in several."""
    choices = [[token] for token in range(300)]
    plan = Plan.of(choices, width=128)
    assert [len(fork.following) for fork in plan.forks] == [128, 128, 44]
    assert all(fork.prefix == () for fork in plan.forks)
    assert sums(plan) == [invented((), token) for token in range(300)]


@pytest.mark.parametrize("seed", range(20))
def test_a_value_is_the_sum_over_the_tokens(seed: int) -> None:
    """Whatever the choices share, each weighs what its own tokens weigh after one another."""
    chance = random.Random(seed)
    choices = [
        tuple(chance.randrange(3) for _ in range(chance.randrange(1, 6)))
        for _ in range(chance.randrange(2, 30))
    ]
    plan = Plan.of(choices, width=2)
    assert plan.forks[0].prefix == ()
    assert all(len(fork.following) <= 2 for fork in plan.forks)
    asked = [(fork.prefix, token) for fork in plan.forks for token in fork.following]
    assert len(asked) == len(set(asked))
    for choice, value in zip(choices, sums(plan), strict=True):
        expected = sum(invented(choice[:place], token) for place, token in enumerate(choice))
        assert math.isclose(value, expected)


def test_a_choice_without_tokens_is_refused() -> None:
    """It has no probability, and says which one it is."""
    with pytest.raises(ValueError, match="choice 1 is no token for this model"):
        Plan.of([[1], []], width=128)
