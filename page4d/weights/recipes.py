"""Which tensors of which public networks make which of our networks: recipes as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from torch import Tensor

from page4d.errors import UsageError, WeightsError
from page4d.models.config import BiasRows, MaskConfig, MaskHeadKind, MaskRule, NetworkConfig, Streams
from page4d.models.schedule import FRAME_GLOBAL, TIME_VIEW, Schedule
from page4d.weights.accounting import Exemption, Stage
from page4d.weights.families import TITLES, Family, Recognised, Specs, mask_head_kind
from page4d.weights.keymap import PAGE4D, PI3, VGGT, KeyMap
from page4d.weights.published import VGGTSettings


class Recipe(StrEnum):
    """A way to fill a network."""

    VGGT = "vggt"
    PAGE4D = "page4d"
    PI3 = "pi3"
    THREE_STAGE = "three-stage"


class Target(StrEnum):
    """The network that is filled."""

    OWN = "own"
    """The family's own, with attention within one image and across all."""
    PAGE4D_MV = "page4d-mv"
    """The view x time network, with attention along the time of each view and across the views of each instant."""


FAMILIES: dict[Recipe, tuple[Family, ...]] = {
    Recipe.VGGT: (Family.VGGT,),
    Recipe.PAGE4D: (Family.PAGE4D,),
    Recipe.PI3: (Family.PI3,),
    Recipe.THREE_STAGE: (Family.PI3, Family.PAGE4D),
}
"""What a recipe needs, in the order in which it is read."""

_KEYS: dict[Family, KeyMap] = {Family.VGGT: VGGT, Family.PAGE4D: PAGE4D, Family.PI3: PI3}

_UNUSED = (
    Exemption(rule="track head: not needed to reconstruct", pattern=r"track_head\..*"),
    Exemption(rule="mask token: used in pretraining only", pattern=r"aggregator\.patch_embed\.mask_token"),
    Exemption(rule="constants of normalisation: built in", pattern=r"image_(?:mean|std)"),
)
_MASK_REST = Exemption(rule="mask head: rests (--mask off)", pattern=r"aggregator\.spatial_mask_head\..*")
_MASK_SCALARS = Exemption(
    rule="aggregator.dynamic.head",
    pattern=r"aggregator\.spatial_mask_head\.(alpha_logit|tau_logit)",
    target=r"aggregator.dynamic.head.\1",
)
_PI3_HEADS = Exemption(
    rule="Pi3's heads: those of PAGE-4D are used",
    pattern=r"(?:(?:point|conf|camera)_(?:decoder|head))\..*",
)
_ENCODER_OF_PI3 = Exemption(rule="encoder: Pi3's is used", pattern=r"aggregator\.patch_embed\..*")
_REGISTERS_OF_PI3 = Exemption(rule="registers: Pi3's are used", pattern=r"aggregator\.register_token")

_NEW_SCALARS = ("aggregator.dynamic.alpha", "aggregator.dynamic.beta", "aggregator.mask_bias.")
_NEW_HEAD = "aggregator.dynamic.head."
_RULES_OF_NEW = {
    "aggregator.dynamic.alpha": "alpha, beta: weights of the mask's fusion",
    "aggregator.dynamic.beta": "alpha, beta: weights of the mask's fusion",
    "aggregator.mask_bias.": "lambda: starts at 0",
    _NEW_HEAD: "dynamic mask head: untrained, its last layer 0",
}


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """A network to be filled and how."""

    config: NetworkConfig
    stages: tuple[Stage, ...]
    new: tuple[str, ...] = ()
    """Beginnings of the names of tensors that start anew."""
    alpha: float = 1.0
    notices: tuple[str, ...] = field(default=())

    def rule_of_new(self, name: str) -> str | None:
        """Return the rule by which a tensor may start anew, or None if it must come from a source."""
        if not name.startswith(self.new or "\0"):
            return None
        return next(rule for start, rule in _RULES_OF_NEW.items() if name.startswith(start))


def draw_blueprint(
    recipe: Recipe,
    target: Target,
    found: Mapping[Family, Recognised],
    specs: Mapping[Family, Specs],
    mask: bool | None,
) -> Blueprint:
    """Return the network of a recipe and where its tensors come from.

    Raises:
        UsageError: if options contradict the recipe, or PAGE-4D is asked for without saying whether its mask is on.
        WeightsError: if the sources do not fit each other.
    """
    if mask is not None and Family.PAGE4D not in FAMILIES[recipe]:
        raise UsageError(f"--mask is of PAGE-4D; recipe {recipe} has none", "leave it out")
    if recipe is Recipe.THREE_STAGE:
        if target is not Target.PAGE4D_MV:
            raise UsageError("recipe three-stage makes the view x time network only", "pass --to page4d-mv")
        return _three_stage(found, mask_head_kind(specs[Family.PAGE4D]), mask is not False)
    (family,) = FAMILIES[recipe]
    if family is Family.PAGE4D:
        return _page4d(found[family], target, mask_head_kind(specs[family]), mask)
    own = found[family].network
    if target is Target.OWN:
        return Blueprint(config=own, stages=(_stage(family, FRAME_GLOBAL),))
    config = replace(own, schedule=TIME_VIEW, mask=_view_time_mask(own, MaskHeadKind.CONV))
    return Blueprint(config=config, stages=(_stage(family, TIME_VIEW),), new=(*_NEW_SCALARS, _NEW_HEAD))


def _page4d(found: Recognised, target: Target, kind: MaskHeadKind, mask: bool | None) -> Blueprint:
    if kind is MaskHeadKind.CKPT150 and target is Target.OWN:
        raise WeightsError(
            "this PAGE-4D checkpoint has the mask of its older variant (checkpoint_150), not that of the release",
            "pass --to page4d-mv, which has that mask head",
        )
    if mask is None:
        raise UsageError(
            "a PAGE-4D checkpoint does not say whether it runs with its mask",
            "pass --mask on for checkpoint_mask.pt, --mask off for checkpoint_nomask.pt",
        )
    own = found.network
    schedule = TIME_VIEW if target is Target.PAGE4D_MV else FRAME_GLOBAL
    stage = _stage(Family.PAGE4D, schedule, (_MASK_SCALARS if mask else _MASK_REST,))
    if target is Target.OWN:
        if not mask:
            return Blueprint(config=own, stages=(stage,))
        return Blueprint(config=replace(own, mask=_release_mask(found)), stages=(stage,), new=_NEW_SCALARS)
    if not mask:
        config = replace(own, schedule=schedule, mask=_view_time_mask(own, MaskHeadKind.CONV))
        return Blueprint(config=config, stages=(stage,), new=(*_NEW_SCALARS, _NEW_HEAD))
    start = _release_mask(found).layers[0] if kind is MaskHeadKind.RELEASE else None
    config = replace(own, schedule=schedule, mask=_view_time_mask(own, kind, start))
    return Blueprint(config=config, stages=(stage,), new=_NEW_SCALARS)


def _three_stage(found: Mapping[Family, Recognised], kind: MaskHeadKind, mask: bool) -> Blueprint:
    lower, upper = found[Family.PI3].network, found[Family.PAGE4D].network
    for name in ("encoder", "num_heads", "mlp_ratio", "qk_norm_eps", "rope_base"):
        ours, theirs = getattr(lower, name), getattr(upper, name)
        if ours != theirs:
            raise WeightsError(f"Pi3 has {name} {ours} where PAGE-4D has {theirs}", "use checkpoints of one size")
    if lower.num_registers != upper.num_registers + 1 or lower.depth >= upper.depth:
        raise WeightsError(
            f"Pi3 has {lower.num_registers} registers and {lower.depth} layers, "
            f"PAGE-4D {upper.num_registers} and {upper.depth}",
            "three-stage needs one register more and fewer layers in Pi3",
        )
    replaced = "|".join(str(layer) for layer in range(lower.depth))
    from_pi3 = Exemption(
        rule=f"layers 0 to {lower.depth - 1}: Pi3's are used",
        pattern=rf"aggregator\.(?:frame|global)_blocks\.(?:{replaced})\..*",
    )
    registers = Exemption(
        rule="registers: the first of Pi3's, for both slots",
        pattern="register_token",
        target="aggregator.special.register_token",
        adapt=_Registers(count=upper.num_registers, slots=upper.token_slots),
    )
    exemptions = (_ENCODER_OF_PI3, _REGISTERS_OF_PI3, from_pi3, _MASK_SCALARS if mask else _MASK_REST)
    head = kind if mask else MaskHeadKind.CONV
    config = replace(upper, schedule=TIME_VIEW, norm_eps=lower.norm_eps, mask=_view_time_mask(upper, head))
    notices = ["three-stage joins layers that were never trained together: fine-tune it before you trust it"]
    if lower.norm_eps != upper.norm_eps:
        notices.append(
            f"layers {lower.depth} to {upper.depth - 1} run with the norm eps of Pi3, {lower.norm_eps:g}, "
            f"where PAGE-4D has {upper.norm_eps:g}"
        )
    return Blueprint(
        config=config,
        stages=(_stage(Family.PI3, TIME_VIEW, (_PI3_HEADS, registers)), _stage(Family.PAGE4D, TIME_VIEW, exemptions)),
        new=_NEW_SCALARS if mask else (*_NEW_SCALARS, _NEW_HEAD),
        alpha=0.0 if mask else 1.0,
        notices=tuple(notices),
    )


@dataclass(frozen=True)
class _Registers:
    """Give every slot the first registers of a source that has one slot."""

    count: int
    slots: int

    def __call__(self, tokens: Tensor) -> Tensor:
        return tokens[:, :1, : self.count].expand(-1, self.slots, -1, -1)


def _stage(family: Family, schedule: Schedule, exemptions: tuple[Exemption, ...] = ()) -> Stage:
    within, across = schedule
    return Stage(
        origin=TITLES[family],
        exemptions=(*exemptions, *_UNUSED),
        keys=_KEYS[family],
        steps={"frame": within.value, "global": across.value},
    )


def _release_mask(found: Recognised) -> MaskConfig:
    """Return the mask as the public PAGE-4D release uses it."""
    assert isinstance(found.settings, VGGTSettings)
    settings = found.settings.mask
    if settings.mask_after_frame_block[0] != settings.layers_masked[0] - 1:
        raise UsageError(
            f"--config: the mask is taken after frame block {settings.mask_after_frame_block[0]} "
            f"and acts from layer {settings.layers_masked[0]}",
            "page4d takes it one layer before it acts",
        )
    return MaskConfig(
        layers=settings.layers_masked,
        head=MaskHeadKind.RELEASE,
        rule=MaskRule.PAGE4D,
        streams=Streams.SINGLE,
        bias_rows=BiasRows.SPECIAL,
    )


def _view_time_mask(own: NetworkConfig, head: MaskHeadKind, start: int | None = None) -> MaskConfig:
    """Return the mask of the view x time network: layers 8 to 12 of 24, or five from where its head was trained."""
    first = own.depth // 3 if start is None else start
    count = max(1, round(5 * own.depth / 24))
    return MaskConfig(
        layers=tuple(range(first, min(first + count, own.depth))),
        head=head,
        streams=Streams.DUAL if own.frame_head is None else Streams.SINGLE,
    )
