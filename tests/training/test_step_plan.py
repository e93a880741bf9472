"""What every step does follows from the configuration, the seed and the position, and from nothing else."""

from dataclasses import replace

import pytest
from training_runs import TINY

from page4d.errors import UsageError
from page4d.training.engine.step_plan import Budget, Position, StepPlan, advance, after, is_finished, plan_step
from page4d.training.supervised.config import HintConfig, Shot, Stage
from page4d.training.supervised.seeds import held_out_seed, training_seed

STAGES = (
    Stage(sizes=((28, 42),), shots=(Shot(times=1, views=2),), images_per_batch=8),
    Stage(start=0.5, sizes=((42, 28), (28, 28)), shots=(Shot(times=2, views=2),), images_per_batch=8),
)
STAGED = replace(TINY, stages=STAGES, decay_fraction=0.25, optimizer=replace(TINY.optimizer, warmup_steps=4))


def plans(config, budget: Budget, *, speed: float = 0.0, seconds_a_step: float = 0.0):
    """Run through a whole plan, with a clock that ticks evenly."""
    found: list[StepPlan] = []
    position = Position()
    while True:
        clock = {"seconds": position.seconds + seconds_a_step, "samples_per_second": speed}
        position = advance(replace(position, **clock), config, budget)
        if is_finished(position, budget):
            return found, position
        found.append(plan_step(config, position))
        position = after(position, found[-1])


class TestSeeds:
    def test_training_and_held_out_scenes_are_disjoint(self):
        training = {training_seed(run, sample) for run in (0, 1, 7, 10**9) for sample in (*range(500), 2**31 - 1)}
        held_out = {held_out_seed(index) for index in (*range(500), 2**31 - 1)}
        assert all(seed % 2 == 0 for seed in training)
        assert all(seed % 2 == 1 for seed in held_out)
        assert max(training | held_out) < 2**32

    def test_samples_of_a_run_are_distinct_and_runs_differ(self):
        assert len({training_seed(3, sample) for sample in range(10_000)}) == 10_000
        assert training_seed(0, 0) != training_seed(1, 0)

    @pytest.mark.parametrize("index", [-1, 2**31])
    def test_a_seed_beyond_the_range_is_refused(self, index):
        with pytest.raises(ValueError, match="held-out"):
            held_out_seed(index)


class TestSchedule:
    def test_the_rate_warms_up_stays_and_falls_to_the_end(self):
        found, _ = plans(STAGED, Budget(samples=80))
        rates = {plan.first_sample: plan.rate for plan in found}
        assert [plan.rate for plan in found[:5]] == [0.25, 0.5, 0.75, 1.0, 1.0]
        assert rates[56] == 1.0
        assert [rates[sample] for sample in (60, 70, 78)] == pytest.approx([1.0, 0.5, 0.1])

    def test_the_rate_falls_to_what_is_asked(self):
        found, _ = plans(replace(STAGED, final_rate=0.5), Budget(samples=80))
        assert found[-1].rate == pytest.approx(1 - 0.5 * 18 / 20)

    def test_a_run_without_decay_stays_at_its_height(self):
        found, position = plans(replace(STAGED, decay_fraction=0), Budget(samples=80))
        assert found[-1].rate == 1.0
        assert position.decay_start is None

    def test_stages_begin_at_their_fraction_of_the_budget(self):
        found, position = plans(STAGED, Budget(samples=80))
        assert position.stage_starts == (0, 40)
        assert {(plan.stage, plan.request.num_times) for plan in found} == {(0, 1), (1, 2)}
        assert min(plan.first_sample for plan in found if plan.stage == 1) == 40

    def test_samples_follow_each_other_and_fill_the_images_of_a_batch(self):
        found, _ = plans(STAGED, Budget(samples=80))
        assert [sample for plan in found for sample in plan.samples(0)] == list(range(80))
        assert {plan.batch_size * plan.request.num_times * plan.request.num_views for plan in found} == {8}

    def test_a_clock_decides_once_and_is_then_forgotten(self):
        by_clock, ended = plans(STAGED, Budget(seconds=10), speed=4.0, seconds_a_step=1.0)
        assert ended.stage_starts == (0, 16)
        assert (ended.decay_start, ended.decay_samples) == (22, 8)
        assert by_clock[-1].first_sample + by_clock[-1].num_samples == 30
        stages = tuple(
            replace(stage, start_sample=start) for stage, start in zip(STAGES, ended.stage_starts, strict=True)
        )
        replayed, _ = plans(replace(STAGED, stages=stages, decay_start_sample=22), Budget(samples=30))
        assert [replace(plan, stage=0) for plan in replayed] == [replace(plan, stage=0) for plan in by_clock]

    def test_a_decay_by_the_clock_waits_until_the_speed_is_known(self):
        config = replace(STAGED, decay_fraction=1.0)
        waiting = advance(Position(samples=40, first_sample=40), config, Budget(seconds=100))
        assert waiting.decay_start is None
        measured = replace(waiting, samples=48, seconds=20, samples_per_second=0.5)
        begun = advance(measured, config, Budget(seconds=100))
        assert (begun.decay_start, begun.decay_samples) == (48, 40)
        assert advance(Position(), config, Budget(samples=30)).decay_samples == 30

    def test_a_step_is_a_function_of_seed_and_number(self):
        found, _ = plans(STAGED, Budget(samples=80))
        place = Position(step=found[7].step, samples=found[7].first_sample)
        assert plan_step(STAGED, place) == found[7]
        others = [plan_step(replace(STAGED, seed=seed), place).request for seed in range(20)]
        assert len({other.family for other in others}) > 1

    def test_processes_share_the_samples_of_a_step(self):
        alone = plan_step(replace(STAGED, accumulation=4), Position(step=3, samples=12))
        shared = plan_step(replace(STAGED, accumulation=2), Position(step=3, samples=12), 2)
        assert shared == alone
        assert [sample for batch in range(4) for sample in alone.samples(batch)] == list(range(12, 28))

    def test_hints_are_given_as_often_as_asked(self):
        config = replace(STAGED, hints=HintConfig(intrinsics=0.25, cameras=0.5))
        drawn = [plan_step(config, Position(step=step)) for step in range(800)]
        assert sum(plan.tells_poses for plan in drawn) / 800 == pytest.approx(0.5, abs=0.06)
        assert sum(plan.tells_intrinsics for plan in drawn) / 800 == pytest.approx(0.75, abs=0.06)
        assert not any(plan.tells_masks for plan in drawn)

    def test_a_single_camera_is_never_asked_for_two_views(self):
        drawn = [plan_step(TINY, Position(step=step)).request for step in range(60)]
        assert {(request.family.name, request.num_views) for request in drawn} == {
            ("arc", 2),
            ("arc", 1),
            ("single", 1),
        }


@pytest.mark.parametrize(
    ("seconds", "samples"), [(None, None), (0, None), (None, 0), (-1.0, None), (float("nan"), None)]
)
def test_a_budget_without_an_end_is_refused(seconds, samples):
    with pytest.raises(UsageError):
        Budget(seconds=seconds, samples=samples)
