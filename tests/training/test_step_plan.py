"""Steps are functions of the configuration, the seed and the position: curriculum, samples and learning rate."""

from dataclasses import replace

import pytest

from page4d.errors import UsageError
from page4d.lab.training.config import ConditioningProbabilities, CurriculumStage, SampleShape
from page4d.lab.training.data import CurriculumStep, advance, plan_step
from page4d.lab.training.schedule import Budget, Position, after, is_finished
from page4d.lab.training.validation import held_out_seed, training_seed
from tests.training.training_runs import TINY

STAGES = (
    CurriculumStage(sizes=((28, 42),), shots=(SampleShape(times=1, views=2),), images_per_batch=8),
    CurriculumStage(
        start=0.5, sizes=((42, 28), (28, 28)), shots=(SampleShape(times=2, views=2),), images_per_batch=8
    ),
)
STAGED = replace(TINY, stages=STAGES, decay_fraction=0.25, optimizer=replace(TINY.optimizer, warmup_steps=4))


def plans(config, budget: Budget, *, speed: float = 0.0, seconds_per_step: float = 0.0):
    """Return all steps and the final position, with a uniform clock."""
    found: list[CurriculumStep] = []
    position = Position()
    while True:
        clock = {"seconds": position.seconds + seconds_per_step, "samples_per_second": speed}
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
    def test_a_seed_out_of_range_is_refused(self, index):
        with pytest.raises(ValueError, match="held-out"):
            held_out_seed(index)


class TestSchedule:
    def test_the_rate_warms_up_stays_constant_and_decays(self):
        found, _ = plans(STAGED, Budget(samples=80))
        rates = {plan.first_sample: plan.rate for plan in found}
        assert [plan.rate for plan in found[:5]] == [0.25, 0.5, 0.75, 1.0, 1.0]
        assert rates[56] == 1.0
        assert [rates[sample] for sample in (60, 70, 78)] == pytest.approx([1.0, 0.5, 0.1])

    def test_the_rate_decays_to_the_final_rate(self):
        found, _ = plans(replace(STAGED, final_rate=0.5), Budget(samples=80))
        assert found[-1].rate == pytest.approx(1 - 0.5 * 18 / 20)

    def test_a_run_without_decay_keeps_the_peak_rate(self):
        found, position = plans(replace(STAGED, decay_fraction=0), Budget(samples=80))
        assert found[-1].rate == 1.0
        assert position.decay_start is None

    def test_stages_begin_at_their_fraction_of_the_budget(self):
        found, position = plans(STAGED, Budget(samples=80))
        assert position.stage_starts == (0, 40)
        assert {(plan.stage, plan.request.num_times) for plan in found} == {(0, 1), (1, 2)}
        assert min(plan.first_sample for plan in found if plan.stage == 1) == 40

    def test_samples_are_consecutive_and_fill_the_batches(self):
        found, _ = plans(STAGED, Budget(samples=80))
        assert [sample for plan in found for sample in plan.samples(0)] == list(range(80))
        assert {plan.batch_size * plan.request.num_times * plan.request.num_views for plan in found} == {8}

    def test_a_run_by_the_clock_is_replayed_in_samples(self):
        by_clock, ended = plans(STAGED, Budget(seconds=10), speed=4.0, seconds_per_step=1.0)
        assert ended.stage_starts == (0, 16)
        assert (ended.decay_start, ended.decay_samples) == (22, 8)
        assert by_clock[-1].first_sample + by_clock[-1].num_samples == 30
        stages = tuple(
            replace(stage, start_sample=start) for stage, start in zip(STAGES, ended.stage_starts, strict=True)
        )
        replayed, _ = plans(replace(STAGED, stages=stages, decay_start_sample=22), Budget(samples=30))
        assert [replace(plan, stage=0) for plan in replayed] == [replace(plan, stage=0) for plan in by_clock]

    def test_a_decay_by_the_clock_begins_once_the_speed_is_known(self):
        config = replace(STAGED, decay_fraction=1.0)
        waiting = advance(Position(samples=40), config, Budget(seconds=100))
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

    def test_conditioning_has_the_configured_probabilities(self):
        config = replace(STAGED, hints=ConditioningProbabilities(intrinsics=0.25, cameras=0.5))
        drawn = [plan_step(config, Position(step=step)) for step in range(800)]
        assert sum(plan.poses_known for plan in drawn) / 800 == pytest.approx(0.5, abs=0.06)
        assert sum(plan.intrinsics_known for plan in drawn) / 800 == pytest.approx(0.75, abs=0.06)
        assert not any(plan.masks_known for plan in drawn)

    def test_the_family_of_single_cameras_has_one_view(self):
        drawn = [plan_step(TINY, Position(step=step)).request for step in range(60)]
        assert {(request.family, request.num_views) for request in drawn} == {("arc", 2), ("arc", 1), ("single", 1)}


@pytest.mark.parametrize(
    ("seconds", "samples"), [(None, None), (0, None), (None, 0), (-1.0, None), (float("nan"), None)]
)
def test_a_budget_without_an_end_is_refused(seconds, samples):
    with pytest.raises(UsageError):
        Budget(seconds=seconds, samples=samples)
