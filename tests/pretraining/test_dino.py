"""Self-distillation: recorded values, and the updates of student, teacher and centre."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from page4d.errors import UsageError
from page4d.lab.pretraining.dino import (
    DINOConfig,
    ProjectorConfig,
    ProjectorKind,
    SelfDistillation,
    distillation_loss,
    momentum_at,
    teacher_probabilities,
)
from page4d.networks.encoders.vit import Pooling, ViTConfig
from tests.encoders.recorded import VIT_RULES, Recorded, assert_recorded, load_recorded, translated, vit_config

SMALL = DINOConfig(
    encoder=ViTConfig(image_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2),
    projector=ProjectorConfig(layers=3, hidden_dim=20, bottleneck_dim=12, classes=16),
)
PROJECTOR = ((r"projector\.net\.7\.(.*)", r"projector.classes.\1"), (r"projector\.net\.(.*)", r"projector.hidden.\1"))
RULES = (*((rf"net\.{theirs}", f"encoder.{ours}") for theirs, ours in VIT_RULES), *PROJECTOR)


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return load_recorded("dino_a")


def named(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights under our names, without the unused head."""
    return {name: value for name, value in translated(weights, RULES).items() if "head" not in name}


@pytest.fixture
def distillation(recorded: Recorded) -> SelfDistillation:
    """The recorded student and teacher."""
    given = recorded.config
    config = DINOConfig(
        encoder=vit_config(recorded.meta["net"]),
        projector=ProjectorConfig(
            kind=ProjectorKind.PLAIN,
            layers=given["projection_layers"],
            hidden_dim=given["projection_hidden_size"],
            classes=given["num_classes_K"],
        ),
        student_temperature=given["student_temp"],
        teacher_temperature=given["teacher_temp"],
        teacher_momentum=given["moving_average_decay"],
        centre_momentum=given["center_moving_average_decay"],
    )
    network = SelfDistillation(config)
    for part in ("student", "teacher"):
        network.get_submodule(part).load_state_dict(named(recorded.part(f"weights/{part}.")))
    network.centre.copy_(recorded["input/centers_before"])
    return network


def test_recorded_losses(recorded: Recorded) -> None:
    teacher, centre = recorded["input/teacher_logits"], recorded["input/centers"]
    student = recorded["input/student_logits"].clone().requires_grad_()
    loss = distillation_loss(teacher, student, centre, 0.04, 0.9)
    assert_recorded(teacher_probabilities(teacher, centre, 0.04), recorded["mid/teacher_probs"])
    assert_recorded(loss[None], recorded["output/loss_fn"])
    loss.backward()
    assert_recorded(student.grad, recorded["output/loss_fn_grad_student"])
    sharper = distillation_loss(teacher, student, centre, 0.07, 0.1)
    assert_recorded(sharper[None], recorded["output/loss_fn_temps_0.07_0.1"])


def test_recorded_loss_of_an_underflowing_probability(recorded: Recorded) -> None:
    """Another epsilon in the logarithm changes this loss."""
    parts = (recorded["input/teacher_logits"], recorded["input/student_logits_extreme"], recorded["input/centers"])
    assert_recorded(distillation_loss(*parts, 0.04, 0.1)[None], recorded["output/loss_fn_extreme"])
    assert ((parts[1] / 0.1).softmax(-1) == 0).any()


def test_recorded_projection_and_step(recorded: Recorded, distillation: SelfDistillation) -> None:
    projector, hidden = distillation.student.projector, recorded["input/hidden"]
    assert_recorded(projector.hidden(hidden), recorded["mid/projector_before_l2"])
    assert_recorded(projector(hidden), recorded["output/projection"])
    crops = {name: recorded[f"input/crop_{name}"] for name in ("local_one", "local_two", "global_one", "global_two")}
    student = [distillation.student(crops["local_one"]), distillation.student(crops["local_two"])]
    teacher = [distillation.teacher(crops["global_one"]), distillation.teacher(crops["global_two"])]
    for ours, name in zip((*student, *teacher), ("student_proj_one", "student_proj_two", "teacher_proj_one",
                                            "teacher_proj_two"), strict=True):  # fmt: skip
        assert_recorded(ours, recorded[f"mid/{name}"])
    step = distillation.compare(teacher, student)
    assert_recorded(step.loss[None], recorded["output/step_loss"])
    assert_recorded(step.centre, recorded["output/last_teacher_centers"])
    distillation.update_teacher(step.centre, done=0.0)
    assert_recorded(distillation.centre, recorded["output/teacher_centers_after_update"])
    for name, value in named(recorded.part("output/teacher_after_ema/")).items():
        assert_recorded(distillation.teacher.get_parameter(name), value)


@pytest.fixture
def network() -> SelfDistillation:
    torch.manual_seed(0)
    network = SelfDistillation(SMALL).double()
    with torch.no_grad():
        network.centre.normal_()
        for value in network.student.parameters():
            value.add_(0.05 * torch.randn_like(value))
    return network


def crops(number: int, side: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(side)
    return [torch.rand(3, 3, side, side, generator=generator, dtype=torch.float64) for _ in range(number)]


def test_a_step_updates_the_student_only_and_lowers_the_loss(network: SelfDistillation) -> None:
    large, small = crops(2, 32), crops(3, 16)
    before = copy.deepcopy(network.teacher.state_dict())
    first = network(large, small)
    first.loss.backward()
    assert all(value.grad is None and not value.requires_grad for value in network.teacher.parameters())
    untrained = [
        name for name, value in network.student.named_parameters() if value.grad is None or not value.grad.any()
    ]
    assert untrained == []
    torch.optim.AdamW([value for value in network.parameters() if value.requires_grad], lr=1e-3).step()
    assert network(large, small).loss < first.loss
    assert all(torch.equal(before[name], value) for name, value in network.teacher.state_dict().items())


@pytest.mark.parametrize("done", [0.0, 0.3, 1.0])
def test_teacher_and_centre_are_moving_averages(network: SelfDistillation, done: float) -> None:
    before = copy.deepcopy(network)
    centre = torch.randn(1, 16, dtype=torch.float64)
    network.update_teacher(centre, done)
    kept = momentum_at(done, 0.996)
    for name, value in network.teacher.named_parameters():
        expected = kept * before.teacher.get_parameter(name) + (1 - kept) * before.student.get_parameter(name)
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(network.centre, 0.9 * before.centre + 0.1 * centre, rtol=0, atol=1e-14)
    assert all(torch.equal(value, before.student.get_parameter(name)) for name, value in
               network.student.named_parameters())  # fmt: skip


def test_the_momentum_rises_to_one_on_half_a_cosine() -> None:
    steps = [momentum_at(index / 100, 0.9) for index in range(101)]
    assert steps == sorted(steps)
    assert steps[0] == pytest.approx(0.9)
    assert steps[50] == pytest.approx(0.95)
    assert steps[-1] == 1
    assert steps[25] == pytest.approx(1 - 0.1 * (math.cos(math.pi / 4) + 1) / 2)


def test_every_crop_is_compared_with_all_other_large_ones(network: SelfDistillation) -> None:
    """Two large and three small crops have two times four pairs; no crop is compared with itself."""
    large, small = crops(2, 32), crops(3, 16)
    teacher = [network.teacher(crop) for crop in large]
    student = [network.student(crop) for crop in (*large, *small)]
    pairs = [(i, j) for i in range(2) for j in range(5) if i != j]
    losses = [distillation_loss(teacher[i], student[j], network.centre, 0.04, 0.1) for i, j in pairs]
    assert len(losses) == 8
    found = network(large, small)
    assert found.loss.item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-12)
    torch.testing.assert_close(found.centre, torch.cat(teacher).mean(0, keepdim=True), rtol=0, atol=1e-14)


def test_entropy_and_information_of_the_teacher_detect_collapses(network: SelfDistillation) -> None:
    same = torch.zeros(4, 16, dtype=torch.float64)
    network.centre.zero_()
    uniform = network.compare([same, same], [same, same])
    assert uniform.teacher_entropy.item() == pytest.approx(math.log(16))
    assert uniform.teacher_information.item() == pytest.approx(0, abs=1e-12)
    one = same.clone()
    one[:, 3] = 9
    single = network.compare([one, one], [same, same])
    assert single.teacher_entropy.item() == pytest.approx(0, abs=1e-6)
    assert single.teacher_information.item() == pytest.approx(0, abs=1e-6)
    apart = 9 * torch.eye(4, 16, dtype=torch.float64)
    assert network.compare([apart, apart], [same, same]).teacher_information.item() == pytest.approx(math.log(4))


def test_the_projector_of_the_paper_has_unit_class_weights_and_a_linear_bottleneck() -> None:
    projector = SelfDistillation(SMALL).double().student.projector
    assert [type(part) for part in projector.hidden] == [nn.Linear, nn.GELU, nn.Linear]
    assert projector(torch.randn(5, 24, dtype=torch.float64)).abs().max() <= 1
    assert projector.hidden[-1].out_features == 12


def test_invalid_configurations_are_refused() -> None:
    for change in (
        {"encoder": replace(SMALL.encoder, num_classes=3)},
        {"encoder": replace(SMALL.encoder, pooling=Pooling.MEAN)},
        {"student_temperature": 0.0},
        {"teacher_momentum": 1.5},
    ):
        with pytest.raises(UsageError) as caught:
            replace(SMALL, **change)
        assert caught.value.hint
    with pytest.raises(UsageError, match="projector: layers is 1"):
        ProjectorConfig(layers=1)
