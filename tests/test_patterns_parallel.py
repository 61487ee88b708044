"""Predictions of splits, topologies, intervals and shares, compared with hand calculation, search and simulation."""

import itertools
import math

import numpy as np
import pytest
from _thread_ranks import part


def module():
    return part("_parallel")


def straight(per_unit, alpha=0.0):
    """Return a curve whose seconds are α + amount · per_unit."""
    return module().TimeCurve.through({amount: alpha + amount * per_unit for amount in (1.0, 1e3, 1e6)})


def models(collective_s=1e-9, alpha=0.0):
    """Return models: a unit of time per operation, and α + numbers · collective_s per collective."""
    same = straight(collective_s, alpha)
    return module().RunModels(straight(1.0), straight(1.0), straight(1.0), same, same, same)


SHAPE = (4, 16, 128, 2)  # batch, length, width, heads


def shape(*sides):
    return module().LayerShape(*(sides or SHAPE))


def test_a_curve_interpolates_its_points_and_extrapolates_its_first_and_last_segment():
    curve = module().TimeCurve.through({10.0: 1.0, 20.0: 3.0, 40.0: 4.0})
    amounts = (10, 15, 20, 30, 40, 60, 6, 5, 1)
    assert [curve.seconds(amount) for amount in amounts] == pytest.approx([1, 2, 3, 3.5, 4, 5, 0.2, 0, 0])


def test_a_measured_time_that_falls_with_the_amount_is_replaced_by_the_earlier_time():
    curve = module().TimeCurve.through({1.0: 2.0, 2.0: 1.0, 3.0: 4.0})
    assert curve.seconds(2) == 2.0


def test_the_operations_of_a_layer_are_24_t_d_squared_and_4_t_length_d():
    layer = shape()
    tokens, width = 64, 128
    assert layer.flops == 24 * tokens * width**2 + 4 * tokens * 16 * width


def test_predictions_are_sums_of_their_parts():
    layer, run_models, numbers = shape(), models(collective_s=2.0), 64 * 128
    flops = layer.flops
    first, last = sum(layer.first_products) + layer.attention, sum(layer.last_products)

    def predicted(split, ranks=2):
        prediction = run_models.predicted(split, layer, ranks)
        return prediction.compute_s, prediction.communicate_s

    assert predicted("unsplit") == pytest.approx((flops, 0))
    assert predicted("data") == pytest.approx((flops / 2, numbers / 2 * 2.0))
    assert predicted("tensor") == pytest.approx((flops / 2, 2 * numbers * 2.0))
    assert predicted("sequence") == pytest.approx((flops / 2, (numbers + numbers / 2) * 2.0))
    steps = first / 4 + last / 4 + 3 * max(first, last) / 4
    assert predicted("pipeline") == pytest.approx((steps, (numbers / 4 + numbers) * 2.0))


def test_weights_that_are_read_more_slowly_than_multiplied_favour_fewer_columns():
    unit_line, free = straight(1.0), straight(0.0)
    # reading weights costs time, further rows cost none
    reading = module().TimeCurve.through({1.0: 1e9, 1e12: 1e9 + 1})
    run_models = module().RunModels(reading, unit_line, unit_line, free, free, free)
    assert module().choose(run_models, shape(), 2) == "tensor"


def test_a_split_is_possible_where_it_divides_the_layer():
    possible = module().possible_splits
    assert possible(shape(), 2) == ("unsplit", "data", "tensor", "sequence", "pipeline")
    assert possible(shape(1, 16, 128, 2), 2) == ("unsplit", "tensor", "sequence", "pipeline")
    assert possible(shape(1, 15, 192, 3), 2) == ("unsplit", "pipeline")
    assert possible(shape(4, 16, 128, 2), 4) == ("unsplit", "data", "sequence")


def test_costly_messages_keep_a_layer_whole_and_cheap_ones_split_its_batch():
    choose = module().choose
    assert choose(models(alpha=1e12), shape(), 2) == "unsplit"
    assert choose(models(), shape(), 2) == "data"
    assert choose(models(), shape(1, 16, 128, 2), 2) == "sequence"


def test_regret_is_the_time_lost_over_the_fastest_split():
    measured = {"unsplit": 3.0, "data": 2.0}
    assert module().regret("data", measured) == 0
    assert module().regret("unsplit", measured) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("nbytes", "ranks", "topologies", "best"),
    [
        (8, 16, ("ring", "tree"), "tree"),
        (2**30, 16, ("ring", "tree"), "ring"),
        (8, 16, ("ring", "tree", "mesh"), "mesh"),
        (2**30, 2, ("ring", "tree"), "ring"),
    ],
)
def test_small_arrays_go_up_a_tree_and_large_ones_round_a_ring(nbytes, ranks, topologies, best):
    assert module().best_topology(topologies, nbytes, ranks, 5e-6, 300e9) == best


def test_a_ring_moves_no_more_than_twice_the_array_through_each_link():
    seconds = module().topology_s("ring", 8e9, 8, 0.0, 1e9)
    assert seconds == pytest.approx(2 * 7 / 8 * 8)


def test_the_model_of_a_message_follows_from_its_measured_times():
    alpha_s, bytes_per_s = module().message_model(straight(2e-9, alpha=5e-6), 4)
    assert (alpha_s, bytes_per_s) == pytest.approx((5e-6, 2e9))
    assert module().message_model(straight(0.0, alpha=1.0), 4)[1] < math.inf


@pytest.mark.parametrize(("exposed", "interval"), [(0.0, 1), (0.04, 1), (0.5, 10), (0.51, 11)])
def test_the_synchronisation_interval_is_the_shortest_within_the_given_share_of_cost(exposed, interval):
    assert module().sync_interval(1.0, exposed, 0.05) == interval


def test_the_fewest_ranks_win_among_equally_fast_ones():
    assert module().best_ranks({1: 4.0, 2: 2.0, 4: 1.01, 8: 1.0}) == 4


@pytest.mark.parametrize("item_s", [(1.0, 1.0), (1.0, 2.0), (1.0, 2.5, 7.0), (3.0, 1.0, 1.0)])
@pytest.mark.parametrize("items", [0, 1, 7, 12])
def test_shares_of_work_end_as_early_as_any_other_shares(items, item_s):
    shares = module().balanced(items, item_s)

    def end(counts):
        return max(count * seconds for count, seconds in zip(counts, item_s, strict=True))

    every = (split for split in itertools.product(range(items + 1), repeat=len(item_s)) if sum(split) == items)
    assert sum(shares) == items
    assert end(shares) == pytest.approx(min(map(end, every)))


# seconds of a step, of a save, and between failures
COSTS = [(1.0, 0.5, 600.0), (0.01, 2.0, 3600.0), (1.0, 30.0, 100.0), (0.1, 1e-4, 10.0)]


@pytest.mark.parametrize(("step", "save", "mtbf"), COSTS)
def test_dalys_interval_costs_no_more_than_the_best_of_all_intervals(step, save, mtbf):
    costs = part("_snapshots").SnapshotCosts(step, save)
    counts = np.unique(np.geomspace(1, 20 * math.sqrt(2 * save * mtbf) / step + 2, 4000).astype(int))
    best = min(costs.slowdown(int(count), mtbf) for count in counts)
    assert costs.slowdown(costs.best_steps(mtbf), mtbf) <= 1.001 * best


def test_youngs_interval_is_dalys_where_snapshots_are_cheap():
    module = part("_snapshots")
    assert module.daly_s(1e-3, 1e4) == pytest.approx(module.young_s(1e-3, 1e4), rel=1e-3)
    assert module.daly_s(300.0, 100.0) == 100.0


def simulated(step, save, restart, steps, mtbf, segments, rng):
    """Return the slow-down of a run whose failures are drawn: after each, a restart, and the segment again."""
    segment, total = steps * step + save, 0.0
    for _ in range(segments):
        while (failure := rng.exponential(mtbf)) < segment:
            total += failure
            while (again := rng.exponential(mtbf)) < restart:  # another failure during the restart
                total += again
            total += restart
        total += segment
    return total / (segments * steps * step)


def test_the_expected_slow_down_is_that_of_simulated_failures():
    costs = part("_snapshots").SnapshotCosts(1.0, 2.0, 1.0)
    prediction = simulated(1.0, 2.0, 1.0, 20, 50.0, 20_000, np.random.default_rng(3))
    restarts = part("_snapshots").SnapshotCosts(1.0, 2.0).slowdown(20, 50.0)
    assert prediction == pytest.approx(costs.slowdown(20, 50.0), rel=0.02)
    assert prediction > 1.01 * restarts


def advice():
    return part("_adapted")


def exchange_model(alpha=0.0, per_byte=1.0, lanes=64):
    return advice().ExchangeModel(straight(per_byte, alpha), lanes)


def predicted(model, ranks, size):
    schedules = part("_schedules").TOPOLOGIES
    return {name: model.exchange_s(schedule(ranks), size) for name, schedule in schedules.items()}


def test_an_exchange_takes_the_time_of_its_busiest_rank_in_each_step():
    prediction = predicted(exchange_model(alpha=5.0), 4, 100)
    assert prediction["ring"] == prediction["mesh"] == pytest.approx(3 * (5 + 100))
    assert prediction["star"] == pytest.approx((5 + 3 * 100) + (5 + 9 * 100))
    assert prediction["tree"] == pytest.approx((5 + 100) + (5 + 2 * 100) + (5 + 2 * 100) + (5 + 3 * 100))
    assert predicted(exchange_model(alpha=5.0), 1, 100) == dict.fromkeys(prediction, 0)


def test_copies_that_share_the_cores_take_turns():
    prediction = predicted(exchange_model(lanes=2), 4, 100)
    assert prediction["ring"] == pytest.approx(3 * 2 * 100)
    assert exchange_model(lanes=2).work_s(8, 3.0, 4) == pytest.approx(2 * 3.0 * 2)
    assert exchange_model(lanes=4).work_s(9, 3.0, 4) == pytest.approx(3 * 3.0)


def test_small_blocks_are_exchanged_in_the_fewest_steps_and_large_ones_with_the_least_bytes():
    assert advice().first_best(predicted(exchange_model(alpha=1e6), 8, 1)) == "star"
    assert advice().first_best(predicted(exchange_model(alpha=1.0), 8, 10**6)) == "ring"


def test_the_regret_of_an_advice_is_what_the_best_choice_would_have_saved():
    assert advice().regret("ring", {"ring": 3.0, "star": 2.0}) == pytest.approx(0.5)
    assert advice().regret(2, {1: 3.0, 2: 2.0}) == 0


@pytest.mark.parametrize(("exchange_s", "steps"), [(0.0, 1), (0.05, 1), (0.06, 2), (0.2, 4), (0.9, 16)])
def test_the_advice_is_the_fewest_steps_between_exchanges_with_a_small_enough_share(exchange_s, steps):
    assert advice().steps_between(1.0, exchange_s, 0.05, (1, 2, 4, 8, 16)) == steps


def test_for_exchanges_that_always_cost_too_much_the_advice_is_the_most_steps():
    assert advice().steps_between(1.0, 9.0, 0.05, (1, 2, 4)) == 4


@pytest.mark.parametrize(("ranks", "counts"), [(2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (8, (1, 2, 4, 8))])
def test_the_offered_numbers_of_ranks_double_up_to_all(ranks, counts):
    assert part("_adapted").counts_up_to(ranks) == counts
