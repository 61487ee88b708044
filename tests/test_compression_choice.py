"""The choice of a codec: pure functions of the measured rates and ratios."""

import pytest
from _modules import suite_module
from hypothesis import given
from hypothesis import strategies as st

LINK = 1e10


@pytest.fixture(scope="module")
def choice():
    return suite_module("compression", "_codecs_choice")


def figures(choice, name, ratio, compress_gb_s, decompress_gb_s):
    return choice.Figures(name, 10**9, ratio, 1 / compress_gb_s, 1 / decompress_gb_s)


@pytest.fixture
def three(choice):
    """Return the figures of a fast codec, a strong codec, and one that only copies."""
    return [
        figures(choice, "fast", 2, 100, 200),
        figures(choice, "strong", 4, 5, 10),
        figures(choice, "copies", 1, 1000, 1000),
    ]


@pytest.mark.parametrize(
    ("goal", "link", "chosen"),
    [
        ("speed", LINK, "fast"),  # the fastest codec that saves bytes
        ("ratio", LINK, "strong"),
        ("end-to-end", 1e8, "strong"),
        ("end-to-end", 1e10, "fast"),
        ("end-to-end", 1e12, "raw"),
    ],
)
def test_a_policy_chooses_by_speed_by_ratio_or_by_the_link(choice, three, goal, link, chosen):
    assert choice.choose(goal, three, link) == chosen
    assert choice.choose(goal, [], link) == "raw", "without codecs"


def test_no_codec_is_chosen_for_data_that_none_makes_smaller(choice):
    grows = [figures(choice, "grows", 0.99, 100, 100)]
    assert {"raw"} == {choice.choose(goal, grows, LINK) for goal in choice.GOALS}
    assert {0.0} == {choice.regret(goal, "raw", {"grows": grows[0]}, LINK) for goal in choice.GOALS}


def test_the_regret_is_what_the_choice_costs_more_than_the_best(choice, three):
    by_name = {codec.name: codec for codec in three}
    assert choice.regret("ratio", "fast", by_name, LINK) == pytest.approx(4 / 2 - 1)
    assert choice.regret("speed", "strong", {"strong": three[1], "fast": figures(choice, "fast", 2, 6, 12)}, LINK) == (
        pytest.approx((1 / 5 + 1 / 10) / (1 / 6 + 1 / 12) - 1)
    )
    assert choice.regret("speed", "copies", by_name, LINK) == 1, "it turns out not to save"


@given(
    st.lists(st.tuples(st.floats(0.5, 100), st.floats(0.01, 1000), st.floats(0.01, 1000)), min_size=1, max_size=9),
    st.floats(1e6, 1e13),
)
def test_the_best_codec_has_no_regret_and_no_regret_is_negative(choice, rows, link):
    by_name = {str(index): figures(choice, str(index), *row) for index, row in enumerate(rows)}
    for goal in choice.GOALS:
        assert choice.regret(goal, choice.choose(goal, by_name.values(), link), by_name, link) == 0
        assert all(choice.regret(goal, name, by_name, link) >= 0 for name in [*by_name, "raw"])


def test_a_sample_is_chunks_evenly_spaced_over_the_data(choice):
    import numpy as np

    trial = suite_module("compression", "_codecs_trial")
    data = np.repeat(np.arange(128, dtype=np.uint8), 64)
    chunks = trial.sampled(data, 64).reshape(-1, 64)
    assert (len(chunks), chunks[0, 0], chunks[-1, 0]) == (trial.SAMPLE_CHUNKS, 0, 127)
    assert (chunks == chunks[:, :1]).all()
    assert trial.sampled(data[:100], 64).size == 100
